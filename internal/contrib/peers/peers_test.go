// Package peers tries what others offer against the same worker, one that stops in its work and
// continues after another one has taken over, and counts the effects in PostgreSQL.
//
//	make peers                         # every peer, ten trials of each kind
//	make peers PEERS='river watermill' # these, into the same table
//
// Each worker is a process of its own, and a freeze is a SIGSTOP that the worker sends itself at a
// place. Scheduled jobs bill 20 customers in one transaction; consumers apply 20 messages of one
// partition, each in a transaction. A trial is doubled if a customer or a message has two effects.
//
// A version is changed in go.mod; those of servers and of Java are those that are installed. The run
// writes docs/peers.json, and a test of docs renders it in docs/move-over.md.
package peers

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// row is a peer in one form.
type row struct {
	id     string // PEERS selects by how it begins
	name   string
	module string // whose version the table shows; empty for this one

	installed func(*servers, *testing.T) string // the version of what is no Go module
	form      string                            // settings that a user must change are named here
	promise   string                            // what its documentation promises, with a link

	run    func(context.Context, *pod) error   // one worker, until the context ends
	setUp  func(context.Context, config) error // before the first worker. Optional.
	beside func(context.Context, *pod) error   // another process, that does no work. Optional.
	java   bool                                // a worker is a Java program instead

	play func(*servers, context.Context, kind) outcome // a trial without workers, instead

	// replaced says that nobody takes over until a worker of the same name starts.
	replaced bool
	consumer bool
	keeps    bool // nobody takes over as long as the frozen worker lives
	needs    func(*servers) string

	never bool // a doubled or lost effect fails the test
}

const (
	unfenced    = "[none: \"does not guarantee that only one client is acting as a leader\"](https://pkg.go.dev/k8s.io/client-go/tools/leaderelection)"
	riverOnce   = "[at least once](https://pkg.go.dev/github.com/riverqueue/river#Config)"
	asynqOnce   = "[at least once](https://github.com/hibiken/asynq#features)"
	activities  = "[at least once](https://docs.temporal.io/activity-definition#idempotency)"
	steps       = "[at least once](https://docs.dbos.dev/explanations/concurrent-executions)"
	atLeastOnce = "at least once"
	redisLock   = "a lock with a timeout"
	inDatabase  = "once in this database"
)

// rows are in the order of the page.
var rows = []*row{
	{id: "epochfence/kafka", name: "**epochfence**, Kafka", form: "`consumer.Each`", promise: inDatabase,
		run: runFencedConsumer, setUp: setUpFencedConsumer, consumer: true, never: true},
	{id: "franz-go/after", name: "by hand, franz-go", module: "github.com/twmb/franz-go", form: "offset committed after each effect", promise: atLeastOnce,
		run: runOffsetAfter, setUp: setUpTopic, consumer: true},
	{id: "franz-go/dedupe", name: "by hand, franz-go", module: "github.com/twmb/franz-go", form: "the same, and a table of ids in the transaction", promise: "once, while ids are kept",
		run: runDedupe, setUp: setUpTopic, consumer: true},
	{id: "franz-go/replaced", name: "by hand, franz-go", module: "github.com/twmb/franz-go", form: "offset in the transaction, `on conflict do update`, as [Silverback 5.4](https://github.com/BEagle1984/silverback/blob/master/src/Silverback.Storage.PostgreSql/Messaging/Consuming/KafkaOffsetStore/PostgreSqlKafkaOffsetStore.cs) has it", promise: "exactly once (Silverback)",
		run: runOffsetReplaced, setUp: setUpTopic, consumer: true},
	{id: "franz-go/compared", name: "by hand, franz-go", module: "github.com/twmb/franz-go", form: "offset in the transaction, compared with the one that was read", promise: inDatabase,
		run: runOffsetCompared, setUp: setUpTopic, consumer: true},
	{id: "java", name: "Kafka's Java consumer", form: "offset in the transaction, `on conflict do update`; `seek` when assigned", promise: "[\"exactly once\"](https://kafka.apache.org/41/javadoc/org/apache/kafka/clients/consumer/KafkaConsumer.html)",
		java: true, installed: (*servers).javaVersion, setUp: setUpTopic, consumer: true, needs: (*servers).withoutJava},
	{id: "kafka-transactions/kafka", name: "Kafka transactions, franz-go", module: "github.com/twmb/franz-go", form: "`GroupTransactSession`, effects in a topic", promise: "once in Kafka",
		run: runTransactions, setUp: setUpTopic, beside: runMirror, consumer: true},
	{id: "kafka-transactions/postgres", name: "Kafka transactions, franz-go", module: "github.com/twmb/franz-go", form: "`GroupTransactSession`, effects in PostgreSQL", promise: "none for other systems",
		run: runTransactionsAndDatabase, setUp: setUpTopic, consumer: true},
	{id: "watermill-kafka/commit", name: "Watermill-Kafka", module: "github.com/ThreeDotsLabs/watermill-kafka/v3", form: "`AutoCommit.Enable = false`: commit after each message", promise: atLeastOnce,
		run: runWatermill, setUp: setUpTopic, consumer: true},
	{id: "watermill-kafka/deduplicator", name: "Watermill-Kafka", module: "github.com/ThreeDotsLabs/watermill-kafka/v3", form: "the same, and its `Deduplicator`", promise: atLeastOnce,
		run: runWatermillDeduplicator, setUp: setUpTopic, consumer: true},
	{id: "watermill-kafka/dedupe", name: "Watermill-Kafka", module: "github.com/ThreeDotsLabs/watermill-kafka/v3", form: "the same, and a table of ids in the transaction", promise: "once, while ids are kept",
		run: runWatermillDedupe, setUp: setUpTopic, consumer: true},
	{id: "watermill-sql", name: "Watermill-SQL", module: "github.com/ThreeDotsLabs/watermill-sql/v4", form: "effects through `TxFromContext`", promise: "once, for messages that are rows",
		run: runWatermillSQL, setUp: setUpWatermillSQL, consumer: true},

	{id: "epochfence/schedule", name: "**package `schedule`**", form: "`Job.Do`", promise: inDatabase,
		run: runSchedule, setUp: setUpFences, never: true},
	{id: "gocron/lock", name: "gocron", module: "github.com/go-co-op/gocron/v2", form: "its locker for Redis, `WithAutoExtendDuration`, `WithSingletonMode`", promise: redisLock,
		run: runGocron},
	{id: "gocron/fenced", name: "gocron", module: "github.com/go-co-op/gocron/v2", form: "work in [`gocronlock.Do`](leases.md#with-gocron-client-go-and-controller-runtime)", promise: inDatabase,
		run: runGocronFenced, setUp: setUpFences, never: true},
	{id: "client-go/lease", name: "client-go", module: "k8s.io/client-go", form: "`os.Exit` when the lead is lost", promise: unfenced,
		run: runLeader},
	{id: "client-go/fenced", name: "client-go", module: "k8s.io/client-go", form: "work in `leaderlock.Do`", promise: inDatabase,
		run: runLeaderFenced, setUp: setUpFences, never: true},
	{id: "controller-runtime/lease", name: "controller-runtime", module: "sigs.k8s.io/controller-runtime", form: "`LeaderElection`; the process ends when the lead is lost", promise: "that of client-go",
		run: runController},
	{id: "controller-runtime/fenced", name: "controller-runtime", module: "sigs.k8s.io/controller-runtime", form: "work in `leaderlock.Do`", promise: inDatabase,
		run: runControllerFenced, setUp: setUpFences, never: true},
	{id: "redsync", name: "redsync", module: "github.com/go-redsync/redsync/v4", form: "extended each second; `Until` compared before `COMMIT`", promise: redisLock,
		run: runRedsync},
	{id: "redislock", name: "redislock", module: "github.com/bsm/redislock", form: "refreshed each second; `TTL` before `COMMIT`", promise: redisLock,
		run: runRedislock},
	{id: "etcd/mutex", name: "etcd `Mutex`", module: "go.etcd.io/etcd/client/v3", form: "the session's context; `IsOwner` before `COMMIT`", promise: "[none: \"a lease-based lock service cannot provide mutual exclusion\"](https://github.com/etcd-io/etcd/tree/main/contrib/lock)",
		run: runEtcdMutex},
	{id: "etcd/election", name: "etcd `Election`", module: "go.etcd.io/etcd/client/v3", form: "the same, with the leader's key", promise: "the same",
		run: runEtcdElection},
	{id: "advisory", name: "`pg_try_advisory_lock`, PostgreSQL", form: "a session's lock; a ping of it before `COMMIT`", promise: "a lock as long as the session",
		run: runAdvisory, installed: (*servers).postgresVersion, keeps: true},
	{id: "asynq/unique", name: "asynq", module: "github.com/hibiken/asynq", form: "`Unique`", promise: asynqOnce,
		run: runAsynq, beside: runAsynqScheduler},
	{id: "asynq/key", name: "asynq", module: "github.com/hibiken/asynq", form: "the task's id in a table with a primary key, last", promise: asynqOnce,
		run: runAsynqKey, beside: runAsynqScheduler},
	{id: "temporal/heartbeat", name: "Temporal, Go SDK", module: "go.temporal.io/sdk", form: "`HeartbeatTimeout`, `RecordHeartbeat`", promise: activities,
		run: runTemporal, setUp: setUpTemporal, needs: (*servers).withoutTemporal},
	{id: "temporal/key", name: "Temporal, Go SDK", module: "go.temporal.io/sdk", form: "the workflow's id in a table with a primary key, last", promise: activities,
		run: runTemporalKey, setUp: setUpTemporal, needs: (*servers).withoutTemporal},
	{id: "river/default", name: "River", module: "github.com/riverqueue/river", form: "`UniqueOpts`; `RescueStuckJobsAfter` of 5 s, an hour by default", promise: riverOnce,
		run: runRiver, setUp: setUpRiver},
	{id: "river/complete", name: "River", module: "github.com/riverqueue/river", form: "the same, and `JobCompleteTx`", promise: riverOnce,
		run: runRiverComplete, setUp: setUpRiver},
	{id: "river/ignored", name: "River", module: "github.com/riverqueue/river", form: "the same, in a job that does not end with its context", promise: riverOnce,
		run: runRiverIgnored, setUp: setUpRiver},
	{id: "river/attempt", name: "River", module: "github.com/riverqueue/river", form: "the same; `Attempt` and `State` of its result compared", promise: riverOnce,
		run: runRiverAttempt, setUp: setUpRiver},
	{id: "dbos/step", name: "DBOS Transact for Go", module: "github.com/dbos-inc/dbos-transact-golang", form: "`RunAsStep`; a queue with `WithGlobalConcurrency(1)`", promise: steps,
		run: runDBOSStep, setUp: setUpDBOS, replaced: true},
	{id: "dbos/transaction", name: "DBOS Transact for Go", module: "github.com/dbos-inc/dbos-transact-golang", form: "the same, and `RunAsTransaction`", promise: "once",
		run: runDBOS, setUp: setUpDBOS, replaced: true},
	{id: "pg_cron", name: "pg_cron", form: "the job is SQL; a process of the server is frozen", promise: "[one run of a job at a time](https://github.com/citusdata/pg_cron#what-is-pg_cron)",
		play: (*servers).playPgCron, installed: (*servers).pgCronVersion, needs: (*servers).withoutPgCron},
}

// chosen returns the rows whose ids begin with these names.
func chosen(names []string) ([]*row, error) {
	if len(names) == 0 {
		return rows, nil
	}
	var some []*row
	for _, name := range names {
		before := len(some)
		for _, r := range rows {
			if strings.HasPrefix(r.id, name) {
				some = append(some, r)
			}
		}
		if len(some) == before {
			return nil, fmt.Errorf("there is no peer %q; want some of %q", name, ids())
		}
	}
	return some, nil
}

func ids() (all []string) {
	for _, r := range rows {
		all = append(all, r.id)
	}
	return all
}

func rowOf(id string) *row { return rows[slices.Index(ids(), id)] }

// The test binary is also each worker.
func TestMain(m *testing.M) {
	text := os.Getenv(podEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := servePod(ctx, text)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}
