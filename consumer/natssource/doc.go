// Package natssource leases partitions of NATS JetStream streams and reads them:
// a [consumer.Source] on nats.go.
//
//	conn, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
//	js, err := jetstream.New(conn)
//	source, err := natssource.New(natssource.Options{
//		Group:     "billing",
//		JetStream: js,
//		Streams: []natssource.Stream{{
//			Name:      "payments",
//			Transform: &natssource.Transform{Source: "payments.*", Destination: "payments.{{partition(16,1)}}.{{wildcard(1)}}"},
//		}},
//	})
//
// It needs nats-server 2.11, the first version in which a single key can expire. [Source.Run]
// returns an error for an older server.
//
// The package hides which answers of a server it relies on, which gaps have lost messages, when a
// consumer is replaced, and how much may be requested on a slow link. Callers see a [Source], which
// package consumer runs. Package lease decides who gets which partition.
//
// docs/start.md is the guide. docs/leases.md describes how leases work, and
// docs/guarantees.md#the-protocol-on-nats has the rules for reading.
//
// # Partitions
//
// A partition is a subject filter on a stream. [Stream.Filters] lists the filters;
// [Stream.Transform] gives one for each number of the partition(N, ...) in the stream's subject
// transform, which [EnsureTransform] sets or checks; with neither, the whole stream is one
// partition. Offsets are the stream's sequences, so gaps are normal: they are messages of other
// partitions, and deleted ones. The topic of a message is its stream. Its key is the subject
// under which it is stored.
//
// A fence names its log by the stream's name and time of creation, the number of partitions,
// and the partition's filter. If a stream is created again or partitioned in another way, all its
// partitions, also new ones, halt with an [*epoch.LogChangedError] until an operator decides.
//
// # Leases
//
// Each partition of a group is a resource of package lease, in a key-value bucket. The revision of
// its key is the lease's generation. A member renews one key for all its partitions, its
// registration, every third of LeaseTTL. Members share partitions as equally as possible and move
// as few as possible when one joins or leaves.
//
//	GROUP.lease.resource.STREAM.NUMBER  {"owner", "member", "nonce", "since", "generation"}
//	GROUP.lease.member.ID               {"name", "serves", "declined", "ttl", "nonce"}, expires
//	GROUP.position.STREAM.NUMBER        {"next", "print", "epoch", "owner", "log", "lag"}
//
// In group and stream, bytes other than letters, digits, '-' and '_' are written as '=' and two
// hexadecimal digits. Two bytes are escaped twice: a slash in a group is =252F (not =2F), and a
// percent sign in either is =2525 (not =25).
//
// All tenures of a member end when no renewal was acknowledged for nine tenths of LeaseTTL. This is
// their Term: 13.5 s by default, so consumer.Options.BatchTimeout defaults to 6.75 s. A partition
// that is to be given back is drained within Term. The group notices a killed member after at most
// LeaseTTL plus 1 s.
//
// # Reading
//
// Reading starts at the sink's position. Nothing is acknowledged to the server, so the stream
// must have limits retention: work-queue and interest streams are refused with [ErrRetention].
//
// Reading fails with [consumer.ErrOffsetExpired] if retention or a purge has passed the position.
// It fails with the same error if the source does not know whether the partition lost messages, for
// example after the group was away for longer than the stream keeps messages. It fails with
// [consumer.ErrTruncated] if the position is above the stream's end, or if the stream lost its
// tail. It ends with a [*TransformError] if the subject transform changes. Messages that were
// deleted from inside the stream are passed over, as in a compacted log. Headers that cannot be
// parsed are left out.
//
// A mirror lacks the messages that its origin had removed before the mirror read them. The source
// passes a gap in a mirror's sequences if the origin still begins no later than the gap. Otherwise
// the partition halts with [consumer.ErrOffsetExpired]. If the mirror has a filter, or if messages
// are deleted from the origin, a group should not be further behind than the origin keeps messages.
// A stream with sources shows no gap where it missed messages of a source.
//
// If a stream has a maximum age and several replicas, the servers' clocks must not be further
// apart than half that age.
//
// Errors that pass by themselves are retried for 20 s, a missing stream for 3 s.
//
// # Memory and slow links
//
// BufferBytes is divided equally between streams, and shared by the partitions of each. It
// counts the bytes of messages and 512 for each message. Each partition may read 32 KiB
// even if its part is smaller, and a larger message is delivered all the same.
//
// Answers to renewals arrive on the same connection as messages, behind the messages that were
// requested before. So all partitions together request only as much as the link carries in a
// twelfth of LeaseTTL, or in 1 s if that is less, at the measured rate. A message that takes a
// third of LeaseTTL to arrive is logged as an error, once: raise LeaseTTL.
//
// # Positions
//
// The position of each partition, with owner, epoch and lag, is in its position key:
// `nats kv get epochfence billing.position.payments.3`. It is written every third of LeaseTTL if
// it has changed, at each claim, and at the end of a tenure. Nothing is decided by it.
//
// # Moving over from a durable consumer
//
// A partition that is claimed for the first time continues where the group had got to
// ([consumer.StartCommitted]): at a position that was written into its key by hand
// (`nats kv put epochfence billing.position.payments.3 '{"next":1234}'`), or else after the ack
// floor of the durable consumer Stream.Durable, by default the one with the group's name. If
// a named consumer leaves out some of the partition's subjects, the partition is not claimed.
// Messages that were acknowledged above the floor are applied again, so acknowledge in
// order, or let the work under way finish before the first claim.
//
// A durable consumer knows nothing of leases. Stop its workers before this source starts, or
// let both work for a while and keep the dedupe table of the old workers. To go back, create a
// consumer that begins at the lowest position (`nats consumer add --deliver=1234`).
//
// # Durability of the bucket
//
// A bucket that loses its keys costs no message and no effect: the sink continues its epochs, and
// members acquire leases again. It costs the transactions under way. Use three replicas if a server
// may fail; the bucket is created with the replicas of the first stream. Use sync_interval: always
// if all servers may lose power at once. A bucket in memory works. A bucket that somebody deletes
// is created again within LeaseTTL.
//
// Run refuses a bucket with settings that lose keys, such as a maximum age. If the bucket gets such
// settings while Run works, the log has an error with the command that removes them.
//
// The bucket's name and domain are in each fence: a group that moves to another bucket is
// refused with an [*epoch.ForeignLeaseError].
//
// # Noticing deaths
//
// If the sink does not let the processes of a group see each other ([operate.Watch]), the source does. Each
// process opens a second connection with the options of the first, and asks three others for a sign by core
// NATS, as often as it looks: five times a second. A process that was killed is seen at once, because nobody
// subscribes to its subject any more; a subscription of somebody else that covers the subject hides that, and
// the process counts as silent after its patience. A process that registers again was alive: those on other hosts
// suspect it only after they have got an answer from it. Without the permissions, LeaseTTL decides.
//
// # Limits of streams and of the bucket
//
// A stream's MaxConsumers must allow two consumers for each partition. The InactiveThreshold of
// its ConsumerLimits must be at least 5 s. Run refuses a stream with lower limits.
//
// A bucket has a lease key and a position key for each partition of each group, and needs a few
// hundred bytes for each key. Run refuses a bucket without that space. If the bucket is full, its
// writes are refused, which is logged with the remedy. A single server still accepts renewals then.
// Several replicas do not: leases are lost after LeaseTTL, and nobody can take them until there is
// space.
//
// # Permissions
//
// The user needs these permissions for each stream, the bucket and the group. In a domain, the
// domain's prefix replaces $JS.API and precedes $KV:
//
//	publish    $JS.API.STREAM.INFO.STREAM_NAME
//	publish    $JS.API.STREAM.MSG.GET.STREAM_NAME
//	publish    $JS.API.CONSUMER.CREATE.STREAM_NAME.>
//	publish    $JS.API.CONSUMER.DELETE.STREAM_NAME.>
//	publish    $JS.API.CONSUMER.INFO.STREAM_NAME.>
//	publish    $JS.API.CONSUMER.MSG.NEXT.STREAM_NAME.>
//	publish    $JS.API.STREAM.INFO.ORIGIN          if the stream is a mirror with gaps
//	publish    $JS.API.STREAM.INFO.KV_BUCKET
//	publish    $JS.API.STREAM.MSG.GET.KV_BUCKET
//	publish    $JS.API.CONSUMER.CREATE.KV_BUCKET.>
//	publish    $JS.API.CONSUMER.DELETE.KV_BUCKET.>
//	publish    $JS.FC.KV_BUCKET.>
//	publish    $KV.BUCKET.GROUP.>
//	publish    $JS.API.INFO                        to create the bucket
//	publish    $JS.API.STREAM.CREATE.KV_BUCKET     to create the bucket
//	subscribe  _INBOX.>                            or the connection's own prefix
//	publish    epochfence.BUCKET.GROUP.>           for the watch
//	subscribe  epochfence.BUCKET.GROUP.>           for the watch
package natssource
