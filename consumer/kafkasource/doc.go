// Package kafkasource leases partitions from a Kafka consumer group and reads
// them: a [consumer.Source] on franz-go.
//
//	source, err := kafkasource.New(kafkasource.Options{
//		Group:  "billing",
//		Topics: []string{"orders"},
//		Client: []kgo.Opt{kgo.SeedBrokers("broker:9092")},
//	})
//
// It works with the classic protocol, eager and cooperative, and with KIP-848
// ([kgo.ServerSideBalancer]), with dynamic and with static members
// ([kgo.InstanceID]). It needs Kafka 3.1, the first that fetches by topic id, or
// a broker that does the same; [Source.Run] or the first read says so otherwise.
//
// # The lease
//
// A lease is the membership in the group, as far as it comes with the
// partition. Its generation is that of the group, or the member's epoch under
// KIP-848, and its owner is "client id@host-pid/member id", with the instance id behind
// it for a static member. The log it is for is named by the ids of the cluster
// and of the topic, so a topic that was deleted and created again, and the same
// group and topic on another cluster, are other logs.
//
// A tenure begins when the group assigns the partition and lasts through every
// rebalance that leaves it with this member (cooperative, KIP-848); an eager
// rebalance ends all of them. It ends in one of two ways:
//
//   - It is drained when the group asks for the partition, and when Run ends.
//     The rebalance waits for the batch in hand for up to DrainTimeout. After
//     that, the tenure is cancelled and the group continues without it.
//   - It is lost, at once, when the group has let this member go, when the
//     member comes back under another id, when another process joins as the same
//     static member (which ends Run as well), and when the group's coordinator
//     has not acknowledged a heartbeat for nine tenths of the session timeout, or of
//     the rebalance timeout where that is shorter: before the group gives the
//     partition to somebody else. When contact is back and the group has left us the
//     partition, a new tenure begins.
//
// Term is the shorter of those nine tenths and DrainTimeout.
// Under KIP-848 the broker decides over session timeout and heartbeat interval.
// The source asks for them, and takes the client's [kgo.SessionTimeout] and
// [kgo.HeartbeatInterval] where it may not (see Permissions): if the broker's
// differ from 45 s and 5 s, set these to the same. A heartbeat interval of more
// than a third of the session timeout, or of the rebalance timeout, is refused.
//
// # Confirm
//
// Confirm commits the fence's position to the group under the membership as it
// is now. The coordinator accepts it from a member of the present generation only; Kafka
// 4.3 and newer, under KIP-848, also from one that has not heard of the latest epochs, for the
// partitions that it has had since the epoch that it knows (KIP-1251). Nobody else has those.
// After the answer Confirm looks again whether the tenure still runs. While the
// group rebalances the answer is "not known": ask again. Partitions that confirm
// at the same time share a request.
//
// # Reading
//
// Reading starts at the sink's position, never at the group's committed
// offsets. Nothing is fetched for a partition before it is claimed. Positions
// carry a leader epoch, also where the partition began and where the group had
// committed, and the log is checked for a truncation below the position first
// (KIP-320).
//
// Two clients are made: the member of the group, which reads nothing, and a
// reader, which is in no group. A slow claim, a halted partition or a full
// buffer delay neither heartbeats nor other partitions.
//
// Only committed transactions are read. Gaps between offsets are what compaction,
// transaction markers and aborted transactions leave. The position passes a marker
// at the end of what there is: lag comes down to zero, and a topic that nobody
// writes to any more has lost nothing when retention takes the marker. A position below the start
// of the log is [consumer.ErrOffsetExpired]; one above its end, or in a part that was
// rewritten, is [consumer.ErrTruncated]; a topic that was created again is an
// [*epoch.LogChangedError], and so is the next claim, until somebody has decided
// where to continue: the process itself need not be restarted. Nothing is skipped.
// Errors that pass by themselves, as while a leader is elected, are waited out for
// 20 s, a topic that the broker does not know for 3 s. A partition that answers
// with another error is not asked again before Read is called again.
//
// Keys, values and headers of messages are slices of the response they came in,
// and keep it in memory as long as they are kept. They must not be changed.
//
// # Memory
//
// BufferBytes, called B here, is divided as follows. It counts what records take
// in memory: their bytes, uncompressed, 168 bytes for each, and 160 more once Read
// has yielded it. The memory of messages that were applied is used again, and that of records,
// unless a hook of the caller's sees records or the caller has pools.
//
//   - 3B/8 is for what was fetched and not yet taken, with what Read has yielded
//     last. Of it, B/4 is divided into equal shares for the partitions being read,
//     so that one that is slow or halted takes nothing from the others; B/8 is lent to
//     those that have more to come. A partition that holds more than it may is waited
//     for, for 20 ms, or 100 ms where no other partition got anything, and then paused
//     until it holds half of that.
//   - B/8 is for what kgo has fetched and not yet handed over, one response from
//     each broker. The sizes asked for follow how much records of this topic
//     grow between the wire and memory, as seen so far.
//   - The rest is for responses while they are being read, and for what of them
//     stays as long as one record is queued.
//
// A record batch that is larger than its limit comes all the same, alone, and is
// delivered: so the bound gives way to one such batch for each partition. kgo
// refuses responses above [kgo.BrokerMaxReadBytes] (100 MiB) and batches that
// uncompress to more than [kgo.MaxDecompressBatchBytes] (1 GiB).
//
// # Positions for people
//
// Every MirrorInterval, and when a partition is given back, the newest positions
// are committed to the group, so that tools which show lag work. Nothing is ever
// decided by them, and a commit that fails is logged at debug level and forgotten.
//
// # A handler that hangs
//
// A member cannot give up one partition of those that it is assigned: the classic protocol
// assigns what the leader's balancer says, and under KIP-848 the broker assigns. So when own
// returns because a handler hangs (Tenure.GiveUp), the member drains its other partitions,
// leaves the group, and joins again after a pause. The pause is 10 s at first, doubles up to
// 5 minutes, and ends early when no handler hangs any more. If the member is assigned the
// partition again while the handler hangs, it does not claim it, and leaves again after 10 s.
// A static member leaves for good, so that its partitions are free at once. A member that is
// alone in its group stays, which it finds out by DescribeGroups or ConsumerGroupDescribe;
// if the broker refuses that, it leaves.
//
// # Shutting down
//
// When the context of Run ends, all partitions are drained, the positions are
// published, and the member leaves the group: DrainTimeout at most, plus up to 30
// s for a cluster that does not answer, or a handler that does not return when its
// context is cancelled. A static member does not leave: its partitions wait for the session timeout, or for the process to come back.
//
// # Permissions
//
// On the topics Read (which includes Describe), on the group Read. Under KIP-848
// also DescribeConfigs on the group, or the broker's session timeout set as
// above.
package kafkasource
