package remedies

import "github.com/epochfence/epochfence/consumer"

var (
	explain = Command{"epochfence explain PARTITION", "who had it, what was refused, and why it stands"}
	doctor  = Command{"epochfence doctor", "tables, rights, versions and settings of the sink"}
	history = Command{"epochfence history PARTITION", "which claims replace each other"}
)

var all = []Remedy{
	{
		Reason: consumer.ReasonMessageFailed,
		Means: "A message has used up its attempts, or its handler said that trying again is of no use, and the application has no OnFailure. " +
			"Everything before the message is applied, nothing of it is, and the partition stands in front of it.",
		Do: "Read the error. If the handler is wrong, or something that it needs is missing, fix that: the partition is tried again at least once a minute and goes on by itself. " +
			"A message whose handler hung is not tried again before somebody has paused the partition, deployed a handler that returns, and resumed it. " +
			"If the message can never be applied, skip it; who did so and why is kept in the audit log. " +
			"With an OnFailure such messages are put aside as dead letters, and the partition continues.",
		Commands: []Command{explain, {"epochfence skip PARTITION --through OFFSET --reason '…' --execute", "continues after the message, which is at OFFSET"}},
	},
	{
		Reason: consumer.ReasonOnFailureFailed,
		Means:  "A message failed, and OnFailure, which is to put it aside, has failed as well. Neither has left anything, and the partition stands in front of the message. Where the connection to the database was lost meanwhile, OnFailure was called MaxAttempts times.",
		Do: "The error has both causes. The second one is that of OnFailure: most often the table of dead letters is missing, or the application has no right to write to it. " +
			"Fix it; the partition is tried again at least once a minute, but where OnFailure hung, only once somebody has paused and resumed it. Skip the message only if it need not even be kept.",
		Commands: []Command{doctor, {"epochfence skip PARTITION --through OFFSET --reason '…' --execute", "continues after the message, which is at OFFSET"}},
	},
	{
		Reason: consumer.ReasonHandlerEndedTx,
		Means: "A handler has committed the fenced transaction by itself, in a way that the sink could not prevent: a text with COMMIT is not sent, and costs its message alone. " +
			"The error names the message, its partition and the statement. What was written in that transaction until then is committed without the fence: " +
			"that message's effects, and those of the messages before it in the same transaction. This process does not try those partitions again. Another one to which they move would do the same.",
		Do: "Pause the partition, so that no process repeats it. Look at what the handler wrote for the messages from the position on, and remove what is there already. " +
			"Then change the handler, deploy, and resume. Restarting without a change applies these messages once more.",
		Commands: []Command{
			{"epochfence pause PARTITION --reason '…' --execute", "no process claims it"},
			explain,
			{"epochfence resume PARTITION --reason '…' --execute", "after the handler was changed"},
		},
	},
	{
		Reason: consumer.ReasonLogChanged,
		Means: "The fence counts offsets of another log than the one that is read: the topic or stream was deleted and created again, or the client is connected to another cluster. " +
			"The offset in the fence means something else there, and only an operator can say what.",
		Do: "If the client is connected to the wrong cluster, fix that; the partition then continues by itself. " +
			"If the log is new for good, accept it and say where to continue in it: at its start, unless messages that were applied already were copied into it.",
		Commands: []Command{
			{"epochfence describe PARTITION", "the log in the fence, and the log that is there"},
			{"epochfence rebase PARTITION --to start --reason '…' --execute", "accepts the new log, and begins at its start"},
		},
	},
	{
		Reason: consumer.ReasonForeignLease,
		Means: "The fence was last claimed under a lease from another issuer: another cluster's group, or another bucket. " +
			"Either two deployments use one group name on one sink, or the group was moved to another cluster.",
		Do: "Find out whether the owner in the fence still runs. If both are meant to run, give one of them another group, or a schema of its own. " +
			"If the group was moved, stop what is left at the old place and accept the new issuer. Were the old one to come back, it would be refused the same way.",
		Commands: []Command{
			{"epochfence describe PARTITION", "the issuer and the owner in the fence"},
			{"epochfence rebase PARTITION --reason '…' --execute", "accepts the new issuer, at the position as it is"},
		},
	},
	{
		Reason: consumer.ReasonMessagesExpired,
		Means: "The log has lost messages before they were applied: retention, a limit of the stream, or an operator has deleted them. " +
			"Which ones is known by their offsets, from the position to where the log begins now.",
		Do: "If they can be had from elsewhere, have their effects applied first. Then continue where the log begins. " +
			"That accepts the loss, and the audit log keeps who did and why. Give the log more retention than the consumers may ever be behind.",
		Commands: []Command{
			{"epochfence describe PARTITION", "the position, and where the log begins"},
			{"epochfence rewind PARTITION --to start --reason '…' --execute", "continues where the log begins"},
		},
	},
	{
		Reason: consumer.ReasonLogTruncated,
		Means: "The log ends below the position: messages that were applied are no longer in it. A leader was elected that had not got them, or the cluster was restored from a backup. " +
			"What is produced next gets offsets for which other messages were applied.",
		Do: "The effects of the messages that the log has lost are in the sink. Decide whether they stay, and set the position to where the log ended when it was cut. " +
			"With acks=all and min.insync.replicas of 2 and more, and without unclean elections, Kafka does not lose what it has acknowledged.",
		Commands: []Command{
			{"epochfence describe PARTITION", "the position, and where the log ends"},
			{"epochfence rewind PARTITION --to OFFSET --reason '…' --execute", "continues at OFFSET, where the log was cut"},
		},
	},
	{
		Reason: consumer.ReasonOutOfOrder,
		Means:  "The source has handed over an offset below the position, or one twice. Nothing of it was applied again. A log that was written over can do that, or a defect of the source.",
		Do: "Take the claim away, so that its owner claims again and reads anew from the position in the fence. " +
			"If it halts again, compare the log with the sink at the offset in the error, and report it with both.",
		Commands: []Command{explain, {"epochfence evict PARTITION --reason '…' --execute", "its owner claims again, and reads anew"}},
	},
	{
		Reason: consumer.ReasonMissingFence,
		Means: "The sink has no fence of a partition that was seeded before: its row or table was deleted, or the sink was replaced by one that never had it. " +
			"Without the fence nobody knows what was applied, so nothing is.",
		Do: "Do not insert a row. If a table was dropped, or the application is connected to another database or schema, fix that: the fence is there again, and the partition continues. " +
			"If the fence is lost for good, stop the group. Start one process whose handler fails for every message, and that has no OnFailure: it makes the fence, claims it, and applies nothing. " +
			"Set the position, end that process, and start the group.",
		Commands: []Command{
			doctor,
			{"epochfence rewind PARTITION --to OFFSET --reason '…' --execute", "sets the position of a fence that was made again"},
		},
	},
	{
		Reason: consumer.ReasonElsewhere,
		Means: "The sink has several databases, and another one keeps the partition than the one that this process asks: the processes do not agree on where partitions are. " +
			"The error names both. A partition is never claimed in two of them.",
		Do: "Have all processes use the same databases in the same order, and the same routing; the partition then continues by itself. " +
			"If it is meant to move to another database, its fence and its effects move together: docs/several-databases.md says how.",
		Commands: []Command{doctor},
	},
	{
		Reason: consumer.ReasonUnhealthy,
		Means: "The database refuses for a reason that no message has: a table, a column or a right is missing, the server is read-only, its disk is full, or a table of epochfence's own refuses a row. " +
			"No message is blamed for it.",
		Do: "Read the error and fix the database: apply the migration that the deployment forgot, grant the right, make room, run the statement that the error has for an identity that is behind its rows. " +
			"The partition is tried again at least once a minute and goes on by itself.",
		Commands: []Command{doctor, {"epochfence migrate list", "which migrations were applied"}, {"epochfence grants --role NAME --as application", "the rights that the application's role needs"}},
	},
	{
		Reason: consumer.ReasonPaused,
		Means:  "An operator has paused the partition, and no claim of it is taken until it is resumed. It is as it should be; the fence says who did it, and why.",
		Do:     "Nothing, until what it was paused for is over. Then resume it: its owner notices within seconds.",
		Commands: []Command{
			{"epochfence describe PARTITION", "who has paused it, since when, and why"},
			{"epochfence resume PARTITION --reason '…' --execute", "it continues from its position"},
		},
	},
	{
		Reason: consumer.ReasonStale,
		Means: "The fence belongs to a later claim, so a transaction or a claim was refused. Once, that is the fence at work: another process owns the partition now, and it has the messages. " +
			"A partition stands still for it only while claims continue replacing each other.",
		Do: "Nothing, if it passes. If it does not, look whose claims alternate: two processes that both believe they have the partition, or somebody who evicts it again and again. " +
			"Two groups of the same name on different clusters are one way to get there.",
		Commands: []Command{history},
	},
	{
		Reason:   consumer.ReasonMoved,
		Means:    "The fence carried our claim and was at another position than the transaction began at. The transaction was rolled back, and the partition was claimed again from where the fence is.",
		Do:       "Nothing, if it passes: an answer that was lost looks like this. If it does not, somebody writes to the table of fences, which nothing but its functions may; see who has the right to.",
		Commands: []Command{history, doctor},
	},
	{
		Reason: consumer.ReasonInDoubt,
		Means: "The answer to a commit did not arrive, so that it is not known whether it happened. The partition is claimed again, and the position in the fence then tells. " +
			"A single message that is in doubt by itself again and again, while a transaction without it commits, uses up its attempts, and the reason is then message_failed.",
		Do: "Nothing, if it passes. If it does not, the connection to the database breaks at each commit: look at the database, at proxies and poolers before it, and at their timeouts. " +
			"Nothing is lost or doubled meanwhile.",
		Commands: []Command{explain, doctor},
	},
	{
		Reason: consumer.ReasonTransient,
		Means:  "The database gave up the transaction for a reason that passes: a deadlock, a serialization failure, or a lock that was not granted in time. It is tried again with fewer messages.",
		Do: "If it lasts, another transaction holds a lock on the same rows: find it (in PostgreSQL by pg_stat_activity and pg_blocking_pids) and end it. " +
			"If partitions deadlock with each other all the time, let one committer serve those that touch the same rows.",
		Commands: []Command{doctor},
	},
	{
		Reason: consumer.ReasonTimeout,
		Means: "An attempt to claim the partition, or a transaction, took longer than Options.BatchTimeout and was given up, so that it ends before the lease does. " +
			"A transaction is tried again with fewer messages; one message that takes too long by itself uses up its attempts, and the reason is then message_failed.",
		Do: "If the partition cannot be claimed, the database does not answer, or the row of its fence is locked: look there. " +
			"If transactions take too long, make handlers faster, move slow calls to other systems to the outbox, or raise the term of the lease and BatchTimeout with it.",
		Commands: []Command{doctor},
	},
	{
		Reason: consumer.ReasonNotConfirmed,
		Means:  "The source did not confirm the lease, so no claim was made. It is that way for moments during each rebalance.",
		Do: "If it lasts, the group does not come to rest, or its coordinator does not answer: look at the broker, and whether members join and leave all the time. " +
			"Restarting consumers begins another rebalance and does not help.",
		Commands: []Command{{"epochfence owners", "which process has which partition"}},
	},
	{
		Reason:   consumer.ReasonSource,
		Means:    "The source could not be asked or read: the broker is not reachable, refuses the connection, or has no such topic.",
		Do:       "Look at the broker, at the network, and at what it lets this client do. Partitions continue by themselves as soon as it answers; restarting consumers does not help.",
		Commands: []Command{doctor},
	},
	{
		Reason:   consumer.ReasonSink,
		Means:    "The sink could not be reached, or failed in a way that it has no name for.",
		Do:       "Look at the database and at the way to it: whether it runs, has connections left, and lets the application in. Partitions continue by themselves as soon as it answers; restarting consumers does not help.",
		Commands: []Command{doctor},
	},
	{
		Reason:   consumer.ReasonLeaseTaken,
		Means:    "The source took the partition away, as a rebalance does. What was not committed was rolled back, and the new owner has it.",
		Do:       "Nothing, if it is rare. If it is not, members join and leave too often: look at deployments, at memory limits, and at the term of the lease.",
		Commands: []Command{history},
	},
	{
		Reason:   consumer.ReasonLeaseExpired,
		Means:    "The source heard nothing of this process for the term of the lease: it was paused, starved or cut off. Others may have the partition since, and nothing more was committed.",
		Do:       "Look for what kept the process from running or from reaching the broker: processor limits, a suspended machine, the network. A longer term of the lease bears longer pauses, and takeovers then take longer.",
		Commands: []Command{history},
	},
	{
		Reason:   consumer.ReasonDrainOverrun,
		Means:    "The partition was revoked, and the batch in hand did not end in time to give it back in order. It was rolled back, and the new owner has it.",
		Do:       "Nothing, if it is rare. If it is not, transactions take too long beside the rebalance: lower BatchTimeout, or find what makes handlers slow.",
		Commands: []Command{history},
	},
	{
		Reason: consumer.ReasonHung,
		Means: "A call of the application's handler, of OnFailure or of its background work did not return although its context had ended, and was abandoned. " +
			"Its transaction was ended, so it holds no lock and nothing of it is committed. The process has given the partition up and does not take it again before the call returns. Other processes may have it. " +
			"Each hang is an attempt of its message. The audit log has it, so the next owner continues the count: a message that hangs one process after the other goes to OnFailure, or halts its partition, after MaxAttempts.",
		Do: "The log and the status page have the stack of the call. Find out what it waits for, and have that take the context or a timeout of its own. " +
			"Restart the process to be rid of the call: only the end of the process ends it. " +
			"If a message hangs, pause the partition until the handler is changed, so that no other process hangs on it, and resume it then: the count begins anew. Or skip the message. " +
			"It has worked when epochfence_hung_calls is 0 and the partition has an owner that advances.",
		Commands: []Command{
			explain,
			{"epochfence pause PARTITION --reason '…' --execute", "no process claims it, and so none hangs on it"},
			{"epochfence resume PARTITION --reason '…' --execute", "after the handler was changed"},
			{"epochfence skip PARTITION --through OFFSET --reason '…' --execute", "continues after the message, which is at OFFSET"},
		},
	},
}
