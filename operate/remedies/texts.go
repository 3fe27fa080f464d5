package remedies

import "github.com/epochfence/epochfence/consumer"

// This file has the texts. remedies_test.go follows each of them, and go test ./docs -update writes
// them into docs/halts.md.

var (
	explain = Command{"epochfence explain PARTITION", "who had it, what was refused, and why it is halted"}
	doctor  = Command{"epochfence doctor", "tables, privileges, versions and settings of the sink"}
	history = Command{"epochfence history PARTITION", "which claims replace each other"}
	pause   = Command{"epochfence pause PARTITION --reason '…' --execute", "no process claims it"}
	resume  = Command{"epochfence resume PARTITION --reason '…' --execute", "after the new handler is deployed"}
	skip    = Command{"epochfence skip PARTITION --through OFFSET --reason '…' --execute", "continues after the message at OFFSET"}
)

const continues = "epochfence describe shows no halt, and the position advances."

var all = []Remedy{
	{Reason: consumer.ReasonMessageFailed,
		Means: "The partition stops before a message. The message has used up its attempts, or its handler returned Permanent, and the application has no OnFailure. " +
			"All earlier messages are applied. No part of this message is applied.",
		Do: "Read the error. If the handler is wrong or lacks something, fix that: the partition is tried again within Options.HaltMax, a minute by default. " +
			"If the message can never be applied, skip it; the audit log keeps who did so and why. " +
			"If the error says that a call \"did not return after its context had ended\", pause the partition, deploy a handler that returns, and resume: until then the message is not tried again. " +
			"An application with an OnFailure moves such messages to dead letters and does not halt.",
		Check:    continues,
		Commands: []Command{explain, skip, pause, resume}},
	{Reason: consumer.ReasonOnFailureFailed,
		Means: "The partition stops before a message. Its handler failed, and then OnFailure failed too. Neither has written anything. " +
			"If the connection was lost in each of OnFailure's transactions, the partition halts after MaxAttempts plus two tries.",
		Do: "Read the error: it has both causes, the handler's first. Fix the cause of OnFailure. Most often the table of dead letters is missing, or the application may not write to it. " +
			"The partition is tried again within Options.HaltMax, a minute by default. If the error says that the message \"is tried again once an operator has paused and resumed the partition\", OnFailure hung: pause the partition, deploy an OnFailure that returns, and resume. Skip the message only if it need not be kept.",
		Check:    continues,
		Commands: []Command{doctor, skip, pause, resume}},
	{Reason: consumer.ReasonHandlerEndedTx,
		Means: "A handler committed the fenced transaction in a way that the sink could not prevent. (A text with COMMIT is not sent, and fails only its message.) " +
			"The error names at most one of the partitions, and the statement if the sink knows it. The effects of this message, and of earlier messages in the same transaction, are committed without the fence. " +
			"This process does not try the partition again. Another process to which it moves would commit the same effects again.",
		Do: "Several partitions can share the transaction and halt with it, also those that the error does not name. " +
			"Pause every partition that has halted with the reason handler_ended_tx before one of them moves. " +
			"In the program's log, the line \"halted; this process does not try it again\" has each partition's position as next. From there on, compare what the handler wrote with the messages. " +
			"Effects of messages at or after the position that describe shows will be made again: remove them. " +
			"If another process has claimed the partition since, check shows no halt any more, and messages below the present position may have their effects twice: remove one. " +
			"Change the handler, deploy it, and resume. A restart without that change applies these messages once more.",
		Check:    "The effects of the messages from next on are there once, and the position advances.",
		Commands: []Command{{"epochfence check", "all halts, with their reasons"}, pause, explain, resume}},
	{Reason: consumer.ReasonLogChanged,
		Means: "The fence counts offsets of another log than the one that is read. The topic or stream was deleted and created again, or the client is connected to another cluster: the same offset is another message there. " +
			"On NATS, also: the number of partitions or a filter has changed. The offsets are still those of the stream, but the partition has other messages. An operator has to decide.",
		Do: "Find out whether the owner in the fence still runs. Two deployments on two Kafka clusters that share a group name and a sink halt like this: if both are meant to run, give one of them another group or another schema, and do not rebase. " +
			"If the client is connected to the wrong cluster, connect it to the right one: the partition continues by itself. " +
			"If the log is new for good, accept it with rebase and say where to begin: at its start, unless messages that are applied already were copied into it. " +
			"If only filters have changed, do not begin at the start: pass the log in the error as --log, and as --to the first offset from which messages of the new filter were not applied. " +
			"If the error says that no fence is added, the partition is a new one. It waits until an operator has decided about the partition that the error names. Then it begins at the earliest message, or on NATS at the position in its key of the bucket: see docs/move-over.md.",
		Check: continues,
		Commands: []Command{
			{"epochfence describe PARTITION", "the log and the owner in the fence, and the log that is there"},
			{"epochfence rebase PARTITION --to start --reason '…' --execute", "accepts the new log, and begins at its start"},
			{"epochfence rebase PARTITION --log LOG --to OFFSET --reason '…' --execute", "accepts other filters of the same stream"},
		}},
	{Reason: consumer.ReasonForeignLease,
		Means: "The fence was claimed last under a lease of another issuer: another NATS bucket or JetStream domain. " +
			"Either two deployments use one group name on one sink, or the group was moved. " +
			"If the Kafka cluster is another one, or the group moved between NATS and Kafka, the reason is log_changed.",
		Do: "Find out whether the owner in the fence still runs. If both deployments are meant to run, give one of them another group or another schema. " +
			"If the group was moved, stop what is left at the old place and accept the new issuer. The old deployment is refused from then on.",
		Check: continues,
		Commands: []Command{
			{"epochfence describe PARTITION", "the issuer and the owner in the fence"},
			{"epochfence rebase PARTITION --reason '…' --execute", "accepts the new issuer, and keeps the position; on NATS with --nats-bucket NEW"},
		}},
	{Reason: consumer.ReasonMessagesExpired,
		Means: "Messages may have been removed before they were applied. Retention, a limit of the stream, or an operator removed them. " +
			"The error has the position and the next offset that the log has. What is missing is in between. " +
			"On Kafka the log begins after the position. On NATS the stream begins after the position, or it has a gap after the position in which messages of this partition may have been.",
		Do: "If the messages can be had from elsewhere, apply their effects first. Then compare NEXT and BEGIN in epochfence describe. " +
			"If BEGIN is above NEXT, rewind to the start of the log, which accepts the loss. " +
			"If BEGIN is not above NEXT, do not use --to start: it goes back and applies messages again. Rewind to the second offset in the error instead. " +
			"Raise the retention above the longest time that consumers may be behind.",
		Check: continues,
		Commands: []Command{
			{"epochfence describe PARTITION", "the position (NEXT), and where the log begins (BEGIN)"},
			{"epochfence rewind PARTITION --to start --reason '…' --execute", "if BEGIN is above NEXT"},
			{"epochfence rewind PARTITION --to OFFSET --reason '…' --execute", "if not: OFFSET is the second offset in the error"},
		}},
	{Reason: consumer.ReasonLogTruncated,
		Means: "The log ends before the position, or was cut off below it and has grown again: messages that were applied are no longer in it. An unclean election or a restored backup can do that. " +
			"New messages get the offsets of the lost ones.",
		Do: "The effects of the lost messages are in the sink. Decide whether they stay. Then set the position to the first offset that was lost. On Kafka that is the second offset in the error. " +
			"On NATS it is END in epochfence describe while nothing new was written; afterwards use the time of the incident (--to @TIME). " +
			"With acks=all, min.insync.replicas of at least 2 and no unclean elections, Kafka keeps what it has acknowledged.",
		Check: continues,
		Commands: []Command{
			{"epochfence describe PARTITION", "the position, and where the log ends"},
			{"epochfence rewind PARTITION --to OFFSET --reason '…' --execute", "continues at OFFSET, the first that was lost"},
		}},
	{Reason: consumer.ReasonOutOfOrder,
		Means: "The source delivered an offset below the position, or one offset twice. No message was applied again. A log that was overwritten, or a defect of the source, can do that.",
		Do: "Evict the claim: the owner claims again and reads from the position in the fence. " +
			"If the partition halts again, compare log and sink at the offset in the error, and report both.",
		Check:    continues,
		Commands: []Command{explain, {"epochfence evict PARTITION --reason '…' --execute", "the owner claims again, and reads from the position"}}},
	{Reason: consumer.ReasonBlocked,
		Means: "The source can be read, and does not go on from the position. A run of a job has taken longer than MaxRun, or has had as many steps as a run can have. " +
			"Or the position of a job is more than a day ahead of the clock. Or a record batch of Kafka is larger than the client's MaxDecompressBatchBytes, or the broker's offset.metadata.max.bytes is too small for a position. " +
			"Or on NATS the stream has another subject transform, the consumer in Stream.Durable does not fit, or the value of the partition's position key in the bucket is not a position.",
		Do: "Read the error. If a run was too long, find out why: skip leaves the rest of it out, and the job continues with its next tick. To finish the run instead, restart this process with a longer MaxRun. Another process that gets the job also continues the run. " +
			"If the position is ahead of the clock, find out which clock is wrong. If it is the clock of this process, set it right, and the job continues. If another clock was wrong, the position in the error is wrong: rewind to a second after the last tick that ran, or to now to leave out the ticks since. If a batch is too large, deploy a program with a higher limit. On NATS, correct what the error says.",
		Check: continues,
		Commands: []Command{
			{"epochfence describe PARTITION", "the error, and the position"},
			{"epochfence skip PARTITION --through OFFSET --reason '…' --execute", "for a job, with the OFFSET in the error"},
			{"epochfence rewind PARTITION --to @TIME --reason '…' --execute", "for a job that is ahead of the clock"},
		}},
	{Reason: consumer.ReasonMissingFence,
		Means: "The sink has no fence for a partition that this process had claimed. Its row was deleted, or the application is connected to another database or schema that has the tables. " +
			"Without the fence nobody knows what was applied, so this process applies nothing.",
		Do: "Do not insert a row, do not restart a process and do not deploy: a process that gets the partition anew takes the group for a new one, creates a fence at the earliest message, and applies everything again. " +
			"(1) Note the position and the epoch of each partition: the metrics epochfence_partition_next_offset and epochfence_partition_epoch, the log line of the halt, or epochfence history --group GROUP. " +
			"(2) If the row can be restored as it was, restore it. The partition continues with the old fence, and you are done. " +
			"(3) Otherwise kill all processes of the group at the same time. " +
			"(4) If they were connected to the wrong database or schema, correct that, start the group, and you are done. " +
			"(5) The fence is lost for good. Start one process whose handler fails for every message and that has no OnFailure and no background work: it creates and claims the fence, and applies nothing. " +
			"(6) Rewind to the position that you noted. If a job of package schedule had done some steps of a run, a rewind leaves out the rest: to continue the run, set next_offset of its fence to that position, mark to 2 and claim_id to a random UUID instead, as the owner of the tables. " +
			"(7) If handlers change items through package guard: as the owner of the tables, set epoch and set_under of the new fence to the same number, above the old epoch, and claim_id to a random UUID. Otherwise a frozen process could change items under the old epoch. " +
			"If handlers change no items: the epochs of the new fence begin low, and systems of your own that compare epochs refuse them. Lower the epochs that these systems have stored to those of epochfence list. The outbox claims by itself above what its receivers have seen. " +
			"(8) End the process of step 5, and start the group.",
		Check: continues,
		Commands: []Command{
			doctor,
			{"epochfence rewind PARTITION --to OFFSET --reason '…' --execute", "sets the position of the new fence"},
		}},
	{Reason: consumer.ReasonElsewhere,
		Means: "The sink has several databases, and the partition's fence is in another one than this process asks. The processes disagree on where partitions are. " +
			"The error names both databases. No partition is claimed in two databases.",
		Do: "Give all processes the same databases in the same order, and the same routing: the partition continues by itself. " +
			"To move a partition to another database, follow docs/stores.md#move-a-partition.",
		Check:    continues,
		Commands: []Command{doctor}},
	{Reason: consumer.ReasonUnhealthy,
		Means: "The database refuses every message: a table, column or privilege is missing, the server is read-only, its disk is full, or a table of epochfence refuses a row. " +
			"No message is blamed.",
		Do: "If the tables of epochfence itself are missing, do not migrate, restart or deploy: restore them, or connect to the right database or schema. New tables have no positions, and everything is applied again. " +
			"Otherwise read the error and fix the database: apply the missing migration, grant the privilege, make room, or run the statement that the error has for an identity column whose sequence is behind its rows. " +
			"The partition is tried again within Options.HaltMax, a minute by default. " +
			"If the error is about an item that handlers change through package guard, the item is ahead of the fence, or it belongs to another log: pause the partition, rewind it to any other offset and then to where it has to continue (a rewind to the present position does nothing), and resume it. From there on, messages change items again.",
		Check:    continues,
		Commands: []Command{doctor, {"epochfence migrate list", "which migrations were applied"}, {"epochfence grants --role NAME --as application", "the privileges that the application's role needs"}}},
	{Reason: consumer.ReasonPaused,
		Means: "An operator paused the partition. No process claims it until it is resumed. This is intended; the fence names the operator and the reason.",
		Do:    "Resume the partition once the reason is gone. The process that has its lease claims it within seconds.",
		Check: "epochfence describe shows the partition as claimed, and the position advances.",
		Commands: []Command{
			{"epochfence describe PARTITION", "who paused it, since when, and why"},
			{"epochfence resume PARTITION --reason '…' --execute", "continues from its position"},
		}},
	{Reason: consumer.ReasonStale,
		Means: "A transaction or a claim was refused because a later claim owns the fence. Once is normal: another process owns the partition and has its messages. " +
			"The partition stops advancing only if claims keep replacing each other.",
		Do:       "If it happens once, do nothing. If it repeats, read which claims alternate. Either the partition moves again and again, because members join and leave or the lease is too short for this machine, or somebody evicts it again and again.",
		Check:    "epochfence history shows no new claims, and the position advances.",
		Commands: []Command{history}},
	{Reason: consumer.ReasonMoved,
		Means:    "The fence had our claim but another position than the transaction started from. The transaction was rolled back, and the partition was claimed again at the fence's position.",
		Do:       "If it happens once, do nothing: a commit whose answer was lost looks like this. If it repeats, something writes to the fence table, which only its functions may do. Find out which role has that privilege.",
		Check:    continues,
		Commands: []Command{history, doctor}},
	{Reason: consumer.ReasonInDoubt,
		Means: "The answer to a commit did not arrive. The partition is claimed again, and the position in the fence shows whether the commit of messages happened. " +
			"A single message whose commits are in doubt again and again, while a transaction without it commits, uses up its attempts. The reason is message_failed then.",
		Do:       "If it happens once, do nothing. If it repeats, the connection to the database breaks at each commit: check the database, its proxies and poolers, and their timeouts. Nothing is lost or doubled meanwhile.",
		Check:    continues,
		Commands: []Command{explain, doctor}},
	{Reason: consumer.ReasonTransient,
		Means: "The database gave up the transaction for a reason that passes: a deadlock, a serialization failure, or a lock that was not granted in time. It is tried again with fewer messages.",
		Do: "If it lasts, find the transaction that holds a lock on the same rows and end it (in PostgreSQL: pg_stat_activity and pg_blocking_pids). " +
			"In SQLite a process that is frozen keeps the write lock of the file: kill it. " +
			"If partitions deadlock with each other, update the rows in one order in all handlers (consumer.Batches can sort them). Within one process, fewer transactions are then open at a time.",
		Check:    continues,
		Commands: []Command{doctor}},
	{Reason: consumer.ReasonTimeout,
		Means: "A claim or a transaction took longer than Options.BatchTimeout and was given up, because it must end before the lease does. " +
			"A transaction is tried again with fewer messages. A single message that takes too long uses up its attempts. The reason is message_failed then.",
		Do: "If the partition cannot be claimed, check whether the database answers and what locks the fence's row. " +
			"If transactions take too long, make handlers faster, move slow calls to the outbox, or raise the lease's term and BatchTimeout with it.",
		Check:    continues,
		Commands: []Command{doctor}},
	{Reason: consumer.ReasonNotConfirmed,
		Means: "The source did not confirm the lease, so no claim was made. During a rebalance this is normal for moments.",
		Do: "If it lasts, the group keeps rebalancing or its coordinator does not answer. Check the broker, and whether members join and leave all the time. " +
			"Do not restart consumers: that starts another rebalance.",
		Check:    continues,
		Commands: []Command{{"epochfence list", "which process has which partition"}}},
	{Reason: consumer.ReasonSource,
		Means:    "The source cannot be read. The broker is not reachable, refuses the connection, or has no such topic.",
		Do:       "Check the broker, the network, and the client's privileges. Partitions continue by themselves as soon as the broker answers. Restarting consumers does not help.",
		Check:    continues,
		Commands: []Command{{"epochfence doctor", "with --kafka or --nats: whether the log can be read"}}},
	{Reason: consumer.ReasonSink,
		Means: "The sink cannot be reached, or failed for a reason that it does not know.",
		Do: "Check that the database runs, has connections left, and accepts the application. Partitions continue by themselves as soon as it answers. Restarting consumers does not help. " +
			"If the error says that another system has seen an epoch that is too high, lower the epoch in that system: the partition does not continue before.",
		Check:    continues,
		Commands: []Command{doctor}},
	{Reason: consumer.ReasonLeaseTaken,
		Means:    "The source took the partition away, as in a rebalance. What was not committed was rolled back, and the new owner applies it.",
		Do:       "If it is rare, do nothing. If it is frequent, members join and leave too often: check deployments, memory limits, and the lease's term.",
		Check:    "epochfence history shows few claims.",
		Commands: []Command{history}},
	{Reason: consumer.ReasonLeaseExpired,
		Means:    "The source did not hear from this process for the lease's term. The process was paused, starved or cut off. Others may have the partition since; this process committed nothing more.",
		Do:       "Find what kept the process from running or from reaching the broker: processor limits, a suspended machine, the network. A longer term tolerates longer pauses, and makes takeovers slower.",
		Check:    "epochfence history shows few claims.",
		Commands: []Command{history}},
	{Reason: consumer.ReasonDrainOverrun,
		Means:    "The partition was revoked, and its transaction did not end in time. It was rolled back, and the new owner applies its messages.",
		Do:       "If it is rare, do nothing. If it is frequent, transactions are too long for the rebalance: lower BatchTimeout, or make handlers faster.",
		Check:    "epochfence history shows few claims.",
		Commands: []Command{history}},
	{Reason: consumer.ReasonHung,
		Means: "A call of the handler, of OnFailure or of background work did not return after its context had ended. Its transaction was ended: it holds no lock, and nothing of it is committed. " +
			"The process gave the partition up and does not take it again until the call returns. Other processes may have it. " +
			"If the error says that the sink hangs, the outcome is in doubt instead. The process claims the partitions of a transaction of messages again, and gives up the partition of background work until the call returns. " +
			"Each hang counts as an attempt of its message, also across processes: after MaxAttempts the message goes to OnFailure or halts its partition.",
		Do: "If other processes hang on the same message, pause the partition first. " +
			"Then restart the process: nothing else ends the call. The log keeps the stack; the status page has it until the restart. " +
			"Find in the stack what the call waits for, change the handler so that this wait gets the context or a timeout, and deploy. " +
			"If the partition is paused, resume it: the count of attempts starts again. If the message can never be applied, skip it.",
		Check: "epochfence_hung_calls is 0, and the partition has an owner that advances.",
		Commands: []Command{
			explain, pause, resume, skip,
		}},
}
