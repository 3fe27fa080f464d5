//go:build unix

package e2e_test

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

const noticedPartitions = 4

// natsWorker is the source of a worker process.
func natsWorker(url string) (consumer.Source, error) {
	conn, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream := natssource.Stream{Name: topic}
	for n := range noticedPartitions {
		stream.Filters = append(stream.Filters, fmt.Sprint(topic, ".", n))
	}
	return natssource.New(natssource.Options{Group: group, JetStream: js, Streams: []natssource.Stream{stream}, LeaseTTL: noticedTTL})
}

// SQLite does not let the processes see each other: the source does. PostgreSQL does by itself.
func TestTheDeathOfAProcessOnNATSIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	for store, open := range map[string]func(*testing.T) noticed{"SQLite": noticedOnSQLite, "PostgreSQL": noticedOnPostgreSQL} {
		for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
			t.Run(store+", "+name, func(t *testing.T) {
				t.Parallel()
				deathIsNoticed(t, open, signal)
			})
		}
	}
}

// noticed is the store of the processes.
type noticed struct {
	spec  processSpec
	query func(query string, to ...any) error // scans its one row
	// held reports whether a frozen process holds what all wait for, where only its death would help.
	held func() bool
}

func noticedOnSQLite(t *testing.T) noticed {
	d, file := newSQLite(t), ""
	query := func(query string, to ...any) error { return d.db.QueryRowContext(t.Context(), query).Scan(to...) }
	if err := query(`SELECT file FROM pragma_database_list`, &file); err != nil {
		t.Fatal(err)
	}
	d.exec(`DROP TABLE effects`)
	d.exec(`CREATE TABLE effects (number INTEGER, value TEXT, epoch INTEGER, worker TEXT) STRICT`)
	d.exec(`PRAGMA busy_timeout = 200`) // longer than a living process holds the lock
	return noticed{processSpec{
		Database: "file:" + file + "?_pragma=busy_timeout(5000)",
		Effect:   `INSERT INTO effects (number, value, epoch, worker) VALUES (?, CAST(? AS TEXT), ?, ?)`,
	}, query, func() bool {
		_, err := d.db.ExecContext(t.Context(), `DELETE FROM effects WHERE FALSE`)
		return err != nil
	}}
}

func noticedOnPostgreSQL(t *testing.T) noticed {
	d := newPostgres(t).granted()
	d.exec("drop table effects")
	d.exec("create table effects (number int, key text, value text, epoch bigint, worker text)")
	d.exec("grant select, insert on effects to " + d.role)
	query := func(query string, to ...any) error { return d.admin.QueryRow(t.Context(), query).Scan(to...) }
	return noticed{processSpec{PostgreSQL: d.url}, query, func() bool { return false }}
}

func deathIsNoticed(t *testing.T, open func(*testing.T) noticed, signal syscall.Signal) {
	server := natstest.Start(t)
	js := server.JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}}); err != nil {
		t.Fatal(err)
	}
	store := open(t)
	spec, query := store.spec, store.query
	spec.NATS = server.URL()
	start := func(name string) *exec.Cmd {
		spec.Name = name
		return startWorker(t, name, processEnv, spec, &processLog{})
	}
	rounds := 0
	// round sends a message to each partition, and returns how long it takes until all are applied, and by how many processes.
	round := func() (took time.Duration, workers int) {
		t.Helper()
		began := time.Now()
		for n := range noticedPartitions {
			if _, err := js.Publish(t.Context(), fmt.Sprint(topic, ".", n), fmt.Append(nil, "m", rounds)); err != nil {
				t.Fatal(err)
			}
		}
		applied := fmt.Sprintf(`SELECT count(*), count(DISTINCT CASE WHEN value = 'm%d' THEN worker END) FROM effects`, rounds)
		rounds++
		for n := 0; n != rounds*noticedPartitions; <-time.After(5 * time.Millisecond) {
			if err := query(applied, &n, &workers); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) > patience {
				t.Fatalf("%d messages of %d are applied", n, rounds*noticedPartitions)
			}
		}
		return time.Since(began), workers
	}
	victim := start("victim")
	start("survivor")
	for _, workers := round(); workers < 2; _, workers = round() {
		<-time.After(50 * time.Millisecond)
	}
	<-time.After(2 * time.Second) // nobody is suspected before a patience of looks in time
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	frozen := signal == syscall.SIGSTOP
	if !frozen {
		try(victim.Process.Kill())
	}
	for ; frozen; <-time.After(20 * time.Millisecond) {
		try(subprocess.Freeze(victim.Process))
		if !store.held() {
			break
		}
		try(subprocess.Thaw(victim.Process))
	}
	took, workers := round()
	t.Logf("its partitions waited for %v", took)
	if took > noticedWithin {
		t.Errorf("its partitions waited for %v", took)
	}
	if workers != 1 {
		t.Errorf("%d processes have applied them", workers)
	}
	if frozen { // it comes back, and shares again
		try(subprocess.Thaw(victim.Process))
		for _, workers := round(); workers < 2; _, workers = round() {
			<-time.After(50 * time.Millisecond)
		}
	}
}
