package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

var update = flag.Bool("update", false, "write testdata/golden")

// What each command prints, for people and for machines.
func TestOutput(t *testing.T) {
	c := golden(t)
	for name, args := range map[string]string{
		"help":               "--help",
		"help-rewind":        "rewind --help",
		"help-protect":       "protect --help",
		"list":               "list",
		"list-paused":        "list --paused",
		"describe":           "describe",
		"owners":             "owners",
		"history":            "history",
		"history-partition":  "history orders/1 --kind pause,claim",
		"explain":            "explain orders/0",
		"explain-offset":     "explain orders/0 --offset 1",
		"explain-orphaned":   "explain orders/3",
		"explain-unanswered": "explain orders/0 --offset 99",
		"rewind":             "rewind orders/0 --to -1",
		"rewind-all":         "rewind --group billing --topic orders --to end",
		"skip":               "skip orders/2 --through 0",
		"pause":              "pause orders/0 orders/1",
		"resume":             "resume orders/1",
		"evict":              "evict orders/0",
		"rebase":             "rebase orders/3 --to start",
		"deadletters":        "deadletters list",
		"deadletters-show":   "deadletters show 2",
		"deadletters-replay": "deadletters replay 2",
		"migrate-list":       "migrate list",
		"migrate-up":         "migrate up",
		"check":              "check --max-lag 1",
		"doctor":             "doctor",
		"drill":              "drill",
		"observe":            "observe report",
		"observe-shadow":     "observe shadow",
		"moveover":           "moveover --old-ended --wait 0",
		"outbox":             "outbox list",
		"outbox-show":        "outbox show 1",
		"outbox-secrets":     "outbox show 1 --secrets",
		"outbox-retry":       "outbox retry 1",
		"outbox-history":     "outbox history",
	} {
		t.Run(name, func(t *testing.T) {
			c := &cli{t, c.env}
			compare(t, name+".txt", c.run(strings.Fields(args)...))
			if !strings.HasPrefix(name, "help") {
				compare(t, name+".json", c.run(append(strings.Fields(args), "--format=json")...))
			}
		})
	}

	db, err := sql.Open("sqlite", c.env["EPOCHFENCE_DATABASE"])
	must(t, err)
	_, err = db.ExecContext(t.Context(), "DELETE FROM epochfence_migration WHERE version >= 4") // as beside an earlier version
	must(t, errors.Join(err, db.Close()))
	compare(t, "migrate-up-older.txt", c.run("migrate", "up"))
}

func compare(t *testing.T, file string, a answer) {
	t.Helper()
	got := a.out
	if !strings.HasPrefix(file, "help") { // which has durations that do not vary
		got = normal(got)
	}
	if a.errs != "" {
		got += "-- on the error output:\n" + normal(a.errs)
	}
	if a.code != exitOK {
		got += "-- exit code " + text(a.code) + "\n"
	}
	path := filepath.Join("testdata", "golden", file)
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", file, got, want)
	}
}

// golden is a sink in which something of everything is: partition 0 was taken over, 1 is
// paused, 2 has halted, 3 is of another topic of that name, and its owner worker-c is dead, 4
// was never claimed, and 6 is in another database. Worker-d has no partition.
func golden(t *testing.T) *cli {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("golden"), kfake.SeedTopics(6, "orders"))
	must(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	t.Cleanup(client.Close)
	for number := range int32(6) {
		for range 3 {
			must(t, client.ProduceSync(t.Context(), &kgo.Record{Partition: number, Value: []byte("order")}).FirstErr())
		}
	}
	path := filepath.Join(t.TempDir(), "sink.db")
	url := "file:" + path
	db, err := sql.Open("sqlite", url+"?_pragma=journal_mode(wal)")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	must(t, sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}))
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	c := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": url, "EPOCHFENCE_KAFKA": cluster.ListenAddrs()[0]}}
	c.fill(sink)
	c.add(db, sink)
	for _, noted := range []string{ // worker-a is frozen until worker-b has taken over, and worker-b is killed before it commits its offset
		"0, 10, 19, 7, 'worker-a', '[\"order-1\",\"order-2\",\"order-1\"]', 0", "0, 20, 29, 8, 'worker-b', NULL, 0", "0, 20, 24, 7, 'worker-a', NULL, 0",
		"0, 35, 39, 8, 'worker-b', NULL, 0", "0, 35, 44, 9, 'worker-c', NULL, 2", "0, 30, 30, 9, 'worker-c', NULL, 0",
	} {
		_, err := db.ExecContext(t.Context(), "INSERT INTO epochfence_observed (group_name, topic, number, first_offset, last_offset, generation, process, ids, caught) VALUES ('billing', 'orders', "+noted+")")
		must(t, err)
	}
	return c
}

func (c *cli) fill(sink *sqlsink.Sink) {
	t := c.t
	t.Helper()
	ctx := t.Context()
	k, err := openKafka(flags{kafka: c.env["EPOCHFENCE_KAFKA"], timeout: inTime})
	must(t, err)
	defer k.close()
	now := k.extents(ctx, []epoch.Fence{{Origin: epoch.Origin{Partition: partition(0)}}})[0]
	must(t, now.err)
	var starts []epoch.Start
	for n := range int32(5) {
		starts = append(starts, epoch.Start{Origin: epoch.Origin{Partition: partition(n), Log: now.log, Source: now.source}})
	}
	starts[3].Log = "kafka:golden/BBBBBBBBBBBBBBBBBBBBBB"
	starts = append(starts, epoch.Start{Origin: epoch.Origin{Partition: partition(6), Log: operate.RedirectLog + "1", Source: now.log}})
	must(t, sink.Seed(ctx, starts))
	claim := func(n int32, owner string) epoch.Fence {
		seen, err := epoch.FenceOf(ctx, sink, partition(n))
		must(t, err)
		f, err := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 7, Owner: owner}))
		must(t, err)
		return f
	}
	type put = func(ctx context.Context, tx *sqlsink.Tx, m epoch.Message, e epoch.Epoch, cause error) error
	apply := func(f epoch.Fence, aside put) epoch.Fence {
		as := []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: epoch.NoMark}}
		must(t, sink.Commit(ctx, as, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			if aside == nil {
				return nil
			}
			m := epoch.Message{Partition: f.Partition, Offset: f.Next, Key: []byte("k-1"), Value: []byte("a chair, \x1b[31mplease"),
				Headers: []epoch.Header{{Key: "trace", Value: []byte{0xff, 0}}}}
			return aside(ctx, tx, m, f.Epoch, errors.New("invalid character 'a'\nlooking for beginning of value"))
		}))
		f.Next++
		return f
	}
	record := func(f epoch.Fence, kind operate.DecisionKind, reason string) {
		must(t, operate.RecordsIn[*sqlsink.Tx](sink).Record(ctx, []operate.Decision{{Kind: kind, Partition: f.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner, From: f.Next, To: f.Next, Reason: reason}}))
	}
	later := func(ctx context.Context, tx *sqlsink.Tx, m epoch.Message, e epoch.Epoch, _ error) error {
		return operate.RecordsIn[*sqlsink.Tx](sink).Defer(ctx, tx, m, e, errors.New("the warehouse does not answer"), time.Hour)
	}
	first := apply(claim(0, "worker-a"), sink.DeadLetter)
	apply(apply(claim(0, "worker-b"), later), nil)
	record(first, operate.DecidedStale, "the fence is held by claim 0f8fad5b-d9cb-469f-a165-70867728950e, epoch 8, owner \"worker-b\"")
	apply(claim(1, "worker-a"), nil)
	c.does(exitOK, "pause", "orders/1", "--execute", "--by", "anna", "--reason", "the warehouse is being moved")
	record(claim(2, "worker-b"), operate.DecidedHalt, "message_failed: billing/orders/2: the message at offset 0 failed, attempt 1: it is no order")
	apply(claim(3, "worker-c"), nil)
	must(t, operate.RecordsIn[*sqlsink.Tx](sink).Record(ctx, []operate.Decision{{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: "billing"}, Owner: "worker-b", From: -1, To: -1,
		Reason: "worker-c on pod-worker-c (member worker-c-1): silent for 1.6s"}}))
	lives := func(name string, every time.Duration) {
		must(t, operate.RecordsIn[*sqlsink.Tx](sink).Alive(ctx, operate.Process{Run: name, Group: "billing", Name: name, Host: "pod-" + name, PID: 1, Version: "example.com/shop@v1.2.3", Every: every}))
	}
	lives("worker-b", time.Hour)
	lives("worker-c", time.Millisecond)
	lives("worker-d", time.Hour)
	<-time.After(10 * time.Millisecond) // longer than worker-c may be silent
}

// add puts something into the outbox, and has an operator do something with it.
func (c *cli) add(db *sql.DB, sink *sqlsink.Sink) {
	t := c.t
	t.Helper()
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	must(t, err)
	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{})
	must(t, err)
	f, err := epoch.FenceOf(t.Context(), sink, partition(0))
	must(t, err)
	as := []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next, Mark: f.Mark}}
	must(t, sink.Commit(t.Context(), as, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		for _, key := range []string{"charge-1", "charge-2"} {
			e := outbox.Entry{Key: "account/17", Scope: "account/17", IdempotencyKey: key, URL: "https://gateway.example/charges?token=s3cret",
				Header: http.Header{"Authorization": {"s3cret"}}, Body: []byte("12.50")}
			if err := box.Add(ctx, tx, epoch.Message{Partition: f.Partition}, e); err != nil {
				return err
			}
		}
		return nil
	}))
	c.does(exitOK, "outbox", "discard", "2", "--execute", "--by", "anna", "--reason", "it was paid in cash")
}
