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
// It needs nats-server 2.11, the first in which a single key can expire;
// [Source.Run] says so otherwise.
//
// # Partitions
//
// A partition is a subject filter on a stream: one of a list ([Stream.Filters]), one
// for each number of the partition(N, ...) in the stream's subject transform
// ([Stream.Transform], which [EnsureTransform] sets or checks), or the whole
// stream. Its offsets are the stream's sequences, so that gaps are the
// rule: they are the messages of other partitions, and deleted ones. The topic of
// a message is its stream, its key the subject it is stored under.
//
// The log that a fence names is made of the stream's name and time of creation,
// the number of partitions and the partition's filter. A stream that was deleted
// and created again, or is partitioned in another way, is another log, and
// partitions halt with an [*epoch.LogChangedError] until an operator decides.
//
// # The lease
//
// For each partition of a group there is a key in a key-value bucket, and who
// wrote its last value holds the lease. The revision of that value is the lease's
// generation.
//
//	GROUP.lease.STREAM.NUMBER     {"owner", "member", "nonce"}
//	GROUP.member.ID               {"name", "streams", "declined", "ttl", "nonce"}, expires
//	GROUP.position.STREAM.NUMBER  {"next", "epoch", "owner", "log", "lag"}
//
// In group and stream, bytes other than letters, digits, '-' and '_' are written
// as '=' and two hexadecimal digits.
//
// A lease has no TTL. It names the registration of its holder, the member's key, and lasts as long as that:
// the registration expires after LeaseTTL (Nats-TTL), and is renewed every third of that, by a write that the
// leader of the bucket takes only at our own revision (Nats-Expected-Last-Subject-Sequence). So a
// member renews one key, however many partitions it has.
//
// An ID is registered once, by a write that is taken only if the key does not exist. A member whose registration
// is gone (it ran out, or somebody deleted it) ends its tenures and registers under another ID.
// So a registration that is gone stays gone, and with it all leases that name it.
//
// A lease is acquired by a write that is taken only if the key is still at the revision that was seen: of
// nothing, of a delete marker, or of a lease that names our own registration and that no tenure of ours
// holds, or of one that names a registration which is gone. What a watcher shows does not
// suffice for the latter. It may have begun between two writes, or belong to a server that lags behind, and
// lack a registration that is there. Proof is a marker in the registration's key, whoever shows it: the server
// leaves one when the TTL runs out, and there is no way back from it. Where there is none, as a minute after that, whoever wants the lease
// writes one, which the leader takes only if the key does not exist; it is refused if the registration is
// there. So nobody else ever touches the lease of a member whose registration has not
// ended. Two that take a lease at once write at one revision, and one of them is refused.
//
// A lease is released by a delete marker at our own revision, after own has
// returned. Where own does not return after its tenure was lost, that is done after LeaseTTL.
//
// Where the answer to a write is lost, or the revision is not what it should be, the
// leader is asked what the key holds. A value with our own nonce is
// ours, and its revision is gone on from; anything else means that the key is
// lost. A lost connection alone does not. One lost answer to a renewal leaves time for others: none is awaited
// for longer than a sixth of LeaseTTL, or half a second.
//
// Whatever the connection does, all tenures of a member end when no renewal was acknowledged
// for nine tenths of LeaseTTL, which is their Term: counted on this process's monotonic clock,
// from when the last acknowledged renewal was sent. The server counts the TTL from when
// it stored it, which is later. So on clocks that run at one speed a tenure is
// over before anybody else can have the partition. Nothing rests on that, though:
// a leader whose wall clock is ahead of the one before lets registrations run out early,
// and a suspended machine may stop its monotonic clock. The sink's fence holds all
// the same.
//
// A lease whose key somebody else has changed is noticed by the watch, or by a full read; then the leader is asked.
// There is a full read every four LeaseTTL, and when the bucket may be another one: it was created at another time,
// which is looked at once a LeaseTTL, the connection was made again, or our registration was not as we left it.
//
// # What others put into the bucket
//
// Whoever may write to the bucket can put anything into these keys. A value in a lease's key that names no
// registration is nobody's, and is overwritten once it has stood there for a LeaseTTL on the clock of a member that wants
// the partition, by a write at the revision that stood there. One that is written anew again and again is said, with the key.
// A registration that was not renewed for its term and a quarter, which the bucket should have let expire, is replaced by a
// marker in the same way: the term is the longer of the registration's own and ours. One that claims more
// partitions than there can be (16,384, or 16 times what this member serves) serves none. A position that is none
// keeps a partition from its first claim, as nobody knows where to begin; that of a partition that was claimed before is overwritten.
//
// The bucket's settings are looked at once a LeaseTTL. Those with which it does not hold leases as it must (a history, a maximum age,
// too little room) are said, with the command. They are not changed back. No takeover waits for what a history makes the bucket keep.
//
// # Confirm
//
// Confirm writes the lease anew, which the leader takes only if the key is as our last write left it: nobody has
// taken the lease since. That a registration still runs adds nothing to the proof, as a TTL did not: it is
// why nobody has tried. Confirm counts if the acknowledgement arrives while the
// tenure runs and the registration has not run out on our own clock. The generation it
// returns is the revision that it has just written.
//
// Revisions start over with a bucket that was created again, and are used again by
// one that was restored from a backup; two members may then hold one generation for a
// moment, until one of them confirms. A registration in a backup runs out when it would have; a member whose own is not
// in it finds out by its next renewal. Epochs continue all the same: the sink counts on from
// where it was. A bucket that was deleted while members run is created again
// by them. Its name is what fences keep of it, with the domain: a group that moves to
// another bucket is another deployment, which the sink refuses with an
// [*epoch.ForeignLeaseError].
//
// # Members and shares
//
// Every member is registered, watches the keys
// of its group, and computes the same shares: as equal as can be among members that
// may serve different streams, and of the ways to reach that the one that moves the fewest
// partitions away from who holds them. It takes free
// partitions up to its share. What it has too much it gives back, drained, one
// at a time, and only while somebody who can take it has less than a share. So
// a member that joins or leaves moves no more partitions than it must. What it sees
// may be late or wrong; that costs a refused write, or a partition that moves
// once more, and no lease.
//
// A partition that own returns from early is declined: others may have it. This
// member tries again when a member joins or leaves. Where own returned because a handler
// hangs (Tenure.GiveUp), it does not take the partition before the handler has returned.
//
// A partition that is to be given back is drained within Term; after that its
// tenure is cancelled. When the context of Run ends, the member is registered as one that serves
// nothing, all partitions are drained and
// their leases released, and the others hear of it at once; then the registration is removed. That takes Term at most, and some seconds
// more for a server that does not answer, or a handler that does not return when its
// context is cancelled.
// A member that is killed is missed when its registration runs out, LeaseTTL after the
// last renewal; the server looks every 250 ms to 1 s.
//
// # Reading
//
// Reading starts at the sink's position, with a consumer of its own on the
// partition's filter: an ordered consumer, made here and not by nats.go, which
// replaces its own without a chance to look at what the new one reads.
// Nothing is acknowledged to the server: the stream must have limits
// retention, and work-queue and interest streams are refused with [ErrRetention].
// What decides is asked of the leader of the stream, never of a replica, which
// may lag behind. While a stream has no leader, servers answer that may have lost what
// they had; they are asked again, for 20 s, and say nothing about what was lost.
//
//   - A message is told from what the server says by its reply subject, which the
//     server makes, and not by its looks: one without a body and with a header
//     "Status" is a message like any other. Headers that cannot be parsed are left out.
//   - A request for messages lasts for a minute, the first one to a consumer for a second, and there are
//     no heartbeats. Instead the leader is asked every second or two, once for all readers of a stream, how
//     far the stream goes; if it continues beyond a reader that hears nothing, for the
//     first message of its partition there, every 5 s at most.
//   - A consumer is replaced when it does not deliver a message that the leader has, a second after that was
//     seen; when its request does not end in time; when the connection was made again, with which the server
//     forgets requests; and when a message from it
//     was lost. Each new one delivers nothing before the stream was seen to be the
//     one it was. A stream that was created again is an [*epoch.LogChangedError].
//   - A gap is handed on once the stream was seen to begin no later than the gap,
//     after the message behind it had arrived. A position that retention or a
//     purge has passed is [consumer.ErrOffsetExpired]: also that of a partition
//     which may have lost nothing, where nobody can tell, as when the group was
//     away for longer than the stream keeps messages. What went from inside the
//     stream is passed over, as in a compacted log: messages that somebody deleted or
//     purged by subject, that a newer one under their subject replaced
//     (MaxMsgsPerSubject), or whose own TTL ran out. Messages expire from the stream's
//     beginning on, so that one that is there proves that none behind it has. Only where
//     the first of the stream never expires (Nats-TTL: never) a gap as old as the stream's
//     maximum age is taken for lost.
//   - A position above the stream's end, or in a stream that lost its tail and
//     grew again, is [consumer.ErrTruncated]. The latter is recognised by a
//     fingerprint of the server's timestamps, which is what [consumer.Message]
//     has as its mark. A leader that has not heard from most of its servers
//     lately is not believed that it has lost anything.
//   - A subject transform that is changed ends reading with a [*TransformError].
//   - Every 10 s, and several times in a maximum age or before the stream's beginning
//     gets there as fast as it moves, a partition that has nothing to deliver, or a full
//     buffer, finds out up to where the stream holds nothing of it, unless the stream ends at its
//     position. A batch without messages lets its position pass, so that retention does
//     not pass it by.
//
// A mirror leaves out what its origin did not have any more when the mirror asked for it:
// what was deleted from inside, and what retention had dropped while the mirror was behind.
// In the mirror both look the same. A gap in which sequences are missing is handed on if
// the origin still begins no later than the gap, or did so while the mirror had it and this process
// has asked, which it does every 5 s. Otherwise nobody can tell, and the
// partition halts with [consumer.ErrOffsetExpired]. So a group that reads a mirror should not be behind it
// by more than the origin keeps, where the mirror has a filter, or messages are
// deleted from the origin; a mirror that has all sequences can be read from
// its beginning. A stream with sources numbers its messages itself, and shows no gap
// where it has missed some of a source: keep what it may be behind in the source.
//
// Where a stream has a maximum age and several replicas, each server deletes by
// its own clock. Messages older than half that age are compared with what the
// leader has, one by one; clocks must not be further apart than that.
//
// Errors that pass by themselves are waited out for 20 s, a stream that is
// missing for 3 s.
//
// BufferBytes are divided evenly by the number of streams, and shared among
// the partitions of each. They count the bytes of messages and 512 for
// each. A message larger than its partition's part is delivered all the same, and each partition
// may always ask for 32 KiB.
//
// # Slow links
//
// Answers to renewals come by the connection by which messages come, after those that were requested before.
// So all partitions together request what the link carries in a twelfth of LeaseTTL, or in a second if that is
// less, at the rate that was measured; 128 KiB before it was, or when that was more than 10 s ago. Partitions take turns for that in the order in which they ask.
// A partition for which nothing is known to wait takes no turn: it requests its part of what the link carries in half that time,
// of 128 KiB before the rate is known, and of 4 MiB, or 256 KiB for each partition, at most.
//
//   - A message that is larger than what was requested is requested alone, and nothing beside it if the server allows messages that are larger than what may be in flight.
//     Where it takes a third of LeaseTTL that is logged as an error, once: a lease that was due for its renewal when the message was
//     requested lasts little longer than half of LeaseTTL.
//   - What a reader has requested and does not read any more counts until the server has confirmed that its consumer is deleted,
//     an answer that comes behind it.
//   - A message that a stream's leader is asked for takes a turn, too, and partitions that skip share a tenth of what the
//     link carries.
//   - A connection that was lost with requests under way has been dropped, perhaps, by a server for which that was too much
//     (max_pending): a quarter of that is requested then, of 1 MiB or more, and twice as much each 10 minutes.
//
// # Positions for people
//
// The position of each partition, with the owner, the epoch and
// the lag, is in its position key: `nats kv get epochfence billing.position.payments.3`.
// It is written every third of LeaseTTL if it has changed, when a claim is made, and at the end of a tenure. Nothing is decided by it. Who
// holds a partition is in its lease.
//
// # Moving over from a durable consumer
//
// A partition that is claimed for the first time continues where the group had got to
// ([consumer.StartCommitted]): at the position that somebody has put into its key by hand, with
// `nats kv put epochfence billing.position.payments.3 '{"next":1234}'`, or else behind the
// ack floor of the durable consumer that Stream.Durable names, or the group. A consumer
// whose filters leave out some of the partition's subjects says nothing about it: if it is
// the one that is named, the partition is not claimed, and the log says why. What was
// acknowledged above the floor is applied again: acknowledge in order, or let
// the work in hand be done before the first claim.
//
// A durable consumer knows nothing of leases, and continues delivering to whoever asks.
// Stop its workers, and then start this; or let both work for a while, with the table
// by which the old ones recognise a message. To go back, have a consumer made
// that begins at the lowest of the positions (`nats consumer add --deliver=1234`).
//
// # How durable the bucket must be
//
// A bucket that forgets costs no message and no effect: the sink counts on, and
// whoever held a lease takes it again or loses it. It does cost the work in hand.
// Where a server may fail, give the bucket three replicas: it is created with those of the
// first stream. Where all of them may lose power at once and that work matters, set
// sync_interval: always for the servers. A bucket in memory works.
//
// # Limits of streams and of the bucket
//
// A stream whose limits do not suffice for its readers is refused at start. MaxConsumers,
// if there is such a limit, must leave two consumers for each partition: the reader's, and that of
// a member that was killed, which the server keeps for a minute, or for the InactiveThreshold of
// the stream's ConsumerLimits if that is less. That one must be 5 s or more.
//
// A bucket needs room for a lease and a position for each partition of each group, a few
// hundred bytes each. One that has not even room for this group is refused. When
// a bucket with limits is full, which other keys in it can bring about, writes are refused,
// and that is said once, with the remedy. A single server still takes renewals then,
// which are no larger than what they replace; several replicas do not, and leases are lost when their TTL has run
// out. Nobody else can take them either, until there is room.
//
// # Permissions
//
// For each stream, the bucket and the group, in a domain with its prefix in the
// place of $JS.API (and before $KV):
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
package natssource
