// Package kafkasource leases partitions from a Kafka consumer group and reads
// them: a [consumer.Source] on franz-go.
//
//	source, err := kafkasource.New(kafkasource.Options{
//		Group:  "billing",
//		Topics: []string{"orders"},
//		Client: []kgo.Opt{kgo.SeedBrokers("broker:9092")},
//	})
//
// The package hides when the group has given or taken a partition, how a process notices that the
// group has removed it, which offsets may be read, and how memory is divided. Callers see a
// [Source], which package consumer runs.
//
// It works with the classic protocol (eager and cooperative) and with KIP-848
// ([kgo.ServerSideBalancer]), with dynamic and static members ([kgo.InstanceID]). It needs
// Kafka 3.1, the first version that fetches by topic id, or a broker that does the same.
// [Source.Run] or the first read returns an error otherwise.
//
// # Shutting down
//
// When the context of Run ends, all partitions are drained, positions are published, and the
// member leaves the group. This takes DrainTimeout at most, plus up to 30 s for a cluster that
// does not answer or a handler that does not return. A static member does not leave: its
// partitions wait for the session timeout, or for the process to come back.
//
// # Permissions
//
// Read on the topics (which includes Describe), and Read on the group. Under KIP-848 also
// DescribeConfigs on the group; without it, set [kgo.SessionTimeout] and
// [kgo.HeartbeatInterval] to the broker's values: by default the broker has 45 s and 5 s, and the
// client 45 s and 3 s.
//
// # Positions
//
// Every MirrorInterval, and when a partition is given back, the newest positions are committed to
// the group, for tools that show lag. No decision depends on them. A commit that fails is logged at
// debug level.
//
// # Memory
//
// BufferBytes limits what messages take in memory. A message counts as its uncompressed bytes, 80
// for each header and 168 more, and as another 160 once Read has yielded it. BufferBytes is divided
// as follows.
//
//   - 3/8 is for messages that were fetched and not taken yet, and for the messages that Read has
//     yielded last. Of BufferBytes, 1/4 is divided into equal shares for the partitions being read,
//     so that a slow or halted partition takes nothing from the others. 1/8 is lent to partitions
//     that have more to come. A partition is paused when it holds as much as
//     half its share plus what is left to lend. It is read again once it holds half of what it
//     held then.
//   - 1/8 is for responses that kgo has fetched and not handed over, one from each broker.
//   - 1/2 is for responses while they are read, and for the parts of a response that stay in memory
//     as long as one of its records is queued.
//
// A record batch larger than the limit of a fetch is still delivered, alone. So each partition can
// exceed its share by one such batch. kgo refuses responses above [kgo.BrokerMaxReadBytes] (100
// MiB) and batches that uncompress to more than [kgo.MaxDecompressBatchBytes] (1 GiB).
//
// Keys, values and headers of messages are slices of their response, and keep it in memory. They
// must not be changed. A handler may keep messages: only the slice that holds them is reused. The
// source reuses the memory of records, unless the options have a hook that sees records, or
// [kgo.WithPools].
//
// # The lease
//
// A lease is the membership in the group, as far as it includes the partition. Its generation is
// the group's, or the member's epoch under KIP-848. Its owner is "client id@host-pid/member id",
// followed by the instance id of a static member; the default client id, epochfence, is left out.
// Its log is named by the ids of the cluster and the topic, so a topic that was created again is
// another log.
//
// A tenure begins when the group assigns the partition. It lasts through every rebalance that
// leaves the partition with this member (cooperative, KIP-848); an eager rebalance ends all
// tenures. A tenure ends in one of three ways:
//
//   - It is drained when the group revokes the partition, and when Run ends. The rebalance waits
//     for the transaction under way, up to DrainTimeout. Then the tenure is cancelled and the
//     group continues without it.
//   - It is lost when the group has removed this member. The transaction under way may take up to a
//     second longer, and commits unless the next owner has claimed before.
//   - It is lost at once when the member gets another id, when the topic was deleted and created
//     again, when another process joins as the same static member (which also ends Run) or Run ends
//     with another error, and when the coordinator has not acknowledged a heartbeat for nine tenths
//     of the session timeout, or of the rebalance timeout if that is shorter. That silence ends the
//     tenure before the group assigns the partition to another member. If the group has kept the
//     partition for this member, a new tenure begins when contact is back.
//
// Term is the shorter of those nine tenths and DrainTimeout: 40.5 s with Kafka's defaults, which
// makes the default of consumer.Options.BatchTimeout 20.25 s. Under KIP-848 the broker sets the
// session timeout and heartbeat interval, and the source asks for them. New and Run refuse a
// heartbeat interval above a third of the session or rebalance timeout.
//
// # Confirm
//
// Confirm commits the fence's position to the group under the present membership. The coordinator
// accepts it only from a member of the present generation. Under KIP-848, Kafka 4.3 and newer also
// accepts it from a member with an older epoch, for partitions that the member has had since that
// epoch (KIP-1251). No other member has these partitions. After the answer, Confirm checks again
// that the tenure still runs. During a rebalance the answer is "unknown", and the caller tries
// again. Partitions that confirm at the same time share a request.
//
// # Reading
//
// Reading starts at the sink's position, never at the group's committed offsets. Nothing is
// fetched for a partition before it is claimed. Positions have a leader epoch. Before the source
// reads, it checks the log for a truncation below the position (KIP-320).
//
// The member of the group is a client that reads nothing; a second client, which is in no group,
// reads. So a slow claim, a halted partition or a full buffer delays neither heartbeats nor
// other partitions.
//
// Only committed transactions are read. Gaps between offsets come from compaction, transaction
// markers and aborted transactions. The position passes a marker at the end of the log, so that
// lag becomes zero. A position below the start of the log is [consumer.ErrOffsetExpired]. A
// position above its end, or in a part that was rewritten, is [consumer.ErrTruncated]. A topic
// that was created again is an [*epoch.LogChangedError], also at the next claim, until an
// operator decides; the process need not be restarted.
//
// Transient errors, such as during a leader election, are retried for 20 s, an unknown topic for 3
// s. After any other error, a partition is not fetched before Read is called again.
//
// # A handler that hangs
//
// A member cannot give up a single partition: under the classic protocol the leader's balancer
// assigns partitions, under KIP-848 the broker. So when a handler hangs ([consumer.Tenure.GiveUp]),
// the member drains its other partitions, leaves the group, and joins again after a pause. The
// pause is 10 s at first, doubles up to 5 minutes, and ends early when no handler hangs any more.
// If the member is assigned the partition again meanwhile, it does not claim it, and leaves again
// after 10 s. A static member leaves the group then, too (at shutdown it does not), so that its
// partitions are free at once. A member that is alone in its group stays. It checks that with
// DescribeGroups or ConsumerGroupDescribe, and leaves if the broker refuses the request.
package kafkasource
