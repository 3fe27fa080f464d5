// Package quickstart tests the programs beside it.
package quickstart

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

func TestKafkaToPostgreSQLWorksAsItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds a program and starts servers")
	}
	database := pgtest.Start(t)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "reservations"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, value := range []string{`{"item":"chair","quantity":2}`, `{"item":"chair","quantity":3}`, `not JSON`} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "reservations", Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "./kafka", t.TempDir(), "KAFKA="+broker.ListenAddrs()[0], "DATABASE_URL="+database.URL)

	db, err := sql.Open("pgx", database.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	await(t, db, `select item || ' ' || quantity from reserved`, "chair 5")
	await(t, db, `select convert_from(message_value, 'UTF8') from epochfence.fence_ledger where kind = 'dead-letter'`, "not JSON")
}

func TestKafkaToPostgreSQLToKafkaWorksAsItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds a program and starts servers")
	}
	database := pgtest.Start(t)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "reservations", "stock", "epochfence-positions"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumeTopics("stock"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, value := range []string{`{"item":"chair","quantity":2}`, `{"item":"chair","quantity":3}`} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "reservations", Key: []byte("chair"), Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "./onward", t.TempDir(), "KAFKA="+broker.ListenAddrs()[0], "DATABASE_URL="+database.URL)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []string
	for len(got) < 2 && ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Key)+" "+string(r.Value)) })
	}
	if want := []string{`chair {"item":"chair","quantity":2}`, `chair {"item":"chair","quantity":5}`}; !slices.Equal(got, want) {
		t.Errorf("stock has %q, want %q", got, want)
	}
}

func TestNATSToSQLiteWorksAsItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds a program and starts a server")
	}
	server, dir := natstest.Start(t), t.TempDir()
	js := server.JetStream(t)
	run(t, "./nats", dir, "NATS_URL="+server.URL())
	publish := func(subject, payment string) {
		t.Helper()
		_, err := js.Publish(t.Context(), subject, []byte(payment), jetstream.WithRetryWait(100*time.Millisecond), jetstream.WithRetryAttempts(100)) // until the program has made the stream
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("pay.alice", "3 to bob")
	publish("pay.bob", "1 to carol")

	db, err := sql.Open("sqlite", filepath.Join(dir, "payments.db?_pragma=busy_timeout(5000)"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	await(t, db, `SELECT payment FROM paid ORDER BY payment`, "1 to carol", "3 to bob")
}

func TestJobsOnPostgreSQLWorkAsTheyStand(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds a program and starts a server")
	}
	database := pgtest.Start(t)
	db, err := sql.Open("pgx", database.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `create table subscription (customer text, price int); insert into subscription values ('ada', 9)`); err != nil {
		t.Fatal(err)
	}
	for range 2 { // both write each time once
		run(t, "./jobs", t.TempDir(), "DATABASE_URL="+database.URL, "CRON=@every 1s")
	}
	await(t, db, `select 'some' from invoice having count(*) >= 3`, "some")
	await(t, db, `select count(*) - count(distinct day || ' ' || customer) >= 2 from invoice`, "true")
}

// run builds a program and runs it in a directory until the test ends: then it
// is interrupted, and has to end well. It has said something by then: a program
// that has just been started does not handle signals yet.
func run(t *testing.T, program, dir string, env ...string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, program).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	out := output{first: make(chan struct{})}
	cmd := exec.CommandContext(ctx, binary)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		select {
		case <-out.first:
		case <-ctx.Done():
			t.Error("the program has said nothing")
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("interrupt the program: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the interrupted program: %v", err)
		}
		if t.Failed() {
			t.Logf("it wrote\n%s", out.text.String())
		}
	})
}

// An output is what a program has written. Read it when the program has ended.
type output struct {
	text  bytes.Buffer
	first chan struct{} // closed when there is some
}

func (o *output) Write(b []byte) (int, error) {
	if o.text.Len() == 0 && len(b) > 0 {
		close(o.first)
	}
	return o.text.Write(b)
}

// await asks until the answer is as wanted, for a minute. The tables may not be
// there yet.
func await(t *testing.T, db *sql.DB, query string, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		got, err := ask(ctx, db, query)
		if err == nil && slices.Equal(got, want) {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s\n= %q, %v; want %q", query, strings.Join(got, ", "), err, want)
		}
	}
}

func ask(ctx context.Context, db *sql.DB, query string) (answers []string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, fmt.Errorf("scan: %w", err)
		}
		answers = append(answers, s)
	}
	return answers, rows.Err()
}
