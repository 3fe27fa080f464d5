//go:build unix

package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/servers/natstest"
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
	return natssource.New(natssource.Options{Group: group, JetStream: js, Streams: []natssource.Stream{stream}})
}

// SQLite does not let the processes see each other: the source does. LeaseTTL is 15 s.
func TestTheDeathOfAProcessOnNATSAndSQLiteIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal syscall.Signal
		within time.Duration
	}{
		"killed": {syscall.SIGKILL, time.Second},
		"frozen": {syscall.SIGSTOP, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t)
			js := server.JetStream(t)
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}}); err != nil {
				t.Fatal(err)
			}
			d := newSQLite(t)
			file := ""
			if err := d.db.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list`).Scan(&file); err != nil {
				t.Fatal(err)
			}
			d.exec(`CREATE TABLE applied (number INTEGER, value TEXT, epoch INTEGER, worker TEXT, UNIQUE (number, value)) STRICT`)
			start := func(name string) *exec.Cmd {
				packed, err := json.Marshal(processSpec{
					NATS: server.URL(), Name: name, Database: "file:" + file + "?_pragma=busy_timeout(5000)",
					Effect: `INSERT INTO applied (number, value, epoch, worker) VALUES (?, CAST(? AS TEXT), ?, ?)`,
				})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(os.Args[0])
				var stderr strings.Builder
				cmd.Env, cmd.Stderr = append(os.Environ(), processEnv+"="+string(packed)), &stderr
				if _, err := cmd.StdinPipe(); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					if t.Failed() {
						t.Logf("%s logged\n%s", name, stderr.String())
					}
				})
				return cmd
			}
			rounds := 0
			// round sends a message to each partition, and returns how long it takes until all are applied, and by how many processes.
			round := func() (took time.Duration, workers int) {
				began := time.Now()
				for n := range noticedPartitions {
					if _, err := js.Publish(t.Context(), fmt.Sprint(topic, ".", n), fmt.Append(nil, "m", rounds)); err != nil {
						t.Fatal(err)
					}
				}
				rounds++
				for n := 0; n < rounds*noticedPartitions; <-time.After(5 * time.Millisecond) {
					if err := d.db.QueryRowContext(t.Context(), `SELECT count(*), (SELECT count(DISTINCT worker) FROM applied WHERE value = ?) FROM applied`, fmt.Sprint("m", rounds-1)).Scan(&n, &workers); err != nil {
						t.Fatal(err)
					}
					if time.Since(began) > time.Minute {
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
			if err := victim.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			took, workers := round()
			t.Logf("%s: its partitions waited for %v", name, took)
			if took > 4*c.within { // a busy machine
				t.Errorf("its partitions waited for %v, want less than %v", took, c.within)
			}
			if workers != 1 {
				t.Errorf("%d processes have applied them", workers)
			}
			if c.signal == syscall.SIGSTOP { // it comes back, and shares again
				if err := victim.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				for _, workers := round(); workers < 2; _, workers = round() {
					<-time.After(50 * time.Millisecond)
				}
			}
		})
	}
}
