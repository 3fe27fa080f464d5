//go:build unix

package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
)

var takeover = struct{ trials, without *int }{
	flag.Int("takeover.trials", 1, "how often TestRealTakeover has each fault, with the zero Options"),
	flag.Int("takeover.without", 0, "and without patience, which takes a minute each time"),
}

// TestRealTakeover measures how long a survivor takes to commit in all partitions of a process that is killed,
// stopped, or cut off from the broker and the database. The broker has its defaults, and so have the
// clients. Two processes share eight partitions, to which messages come all the time, and each message is applied
// once.
func TestRealTakeover(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("set EPOCHFENCE_LONG=1")
	}
	b := kafkatest.Start(t, kafkatest.Config{Properties: map[string]string{
		"group.min.session.timeout.ms": "6000", "group.initial.rebalance.delay.ms": "3000",
		"group.consumer.session.timeout.ms": "45000", "group.consumer.min.session.timeout.ms": "45000",
		"group.consumer.heartbeat.interval.ms": "5000", "group.consumer.min.heartbeat.interval.ms": "5000",
	}})
	for _, balancer := range []string{"range", "cooperative", "KIP-848"} {
		for _, with := range []bool{true, false} {
			trials, name := *takeover.trials, balancer
			if !with {
				trials, name = *takeover.without, balancer+" without patience"
			}
			if trials > 0 {
				t.Run(name, func(t *testing.T) { newTakeovers(t, b.Addr, balancer, with).measure(trials) })
			}
		}
	}
}

const takeoverParts = 8

type takeovers struct {
	*testing.T
	spec      takeoverSpec
	db        *pgx.Conn
	processes [2]*victim
	started   int
}

func newTakeovers(t *testing.T, addr, balancer string, with bool) *takeovers {
	t.Helper()
	d := postgresOn(t, pgtest.Start(t)).granted()
	d.exec(`create table effect (partition int, message_offset bigint, worker text, at timestamptz default clock_timestamp(), primary key (partition, message_offset));
		create index on effect (at)`)
	d.exec("grant insert on effect to " + d.role)
	name := fmt.Sprintf("%s-%t", strings.ToLower(balancer), with)
	s := &takeovers{T: t, db: d.admin, spec: takeoverSpec{Kafka: addr, Database: d.url, Topic: name, Group: name, Balancer: balancer}}
	if !with {
		s.spec.Patience = -1
	}
	createTopic(t, []kgo.Opt{kgo.SeedBrokers(addr)}, name, nil, takeoverParts)
	s.produce(addr)
	for i := range s.processes {
		s.processes[i] = s.start()
	}
	return s
}

// produce sends to each partition all the time, until the test ends.
func (s *takeovers) produce(addr string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	s.Cleanup(func() { cancel(); work.Wait(); client.Close() })
	work.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			for p := range int32(takeoverParts) {
				client.Produce(ctx, &kgo.Record{Topic: s.spec.Topic, Partition: p, Value: []byte("message")}, nil)
			}
		}
	})
}

// victim is a worker process, with its ways to the broker and to the database.
type victim struct {
	name            string
	cmd             *exec.Cmd
	kafka, database *proxy.Proxy
}

func (s *takeovers) start() *victim {
	s.Helper()
	s.started++
	v, spec := &victim{name: fmt.Sprintf("w%d", s.started)}, s.spec
	spec.Name = v.name
	config, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		s.Fatal(err)
	}
	at := net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
	through := func(address string) *proxy.Proxy {
		p, err := proxy.New(func() (string, bool) { return address, true })
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(p.Close)
		return p
	}
	v.kafka, v.database = through(spec.Kafka), through(at)
	spec.Kafka, spec.Database = v.kafka.Address(), strings.Replace(spec.Database, at, v.database.Address(), 1)
	packed, err := json.Marshal(spec)
	if err != nil {
		s.Fatal(err)
	}
	v.cmd = exec.Command(os.Args[0])
	v.cmd.Env, v.cmd.Stderr = append(os.Environ(), takeoverEnv+"="+string(packed)), os.Stderr
	stdin, err := v.cmd.StdinPipe()
	if err == nil {
		err = v.cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = v.cmd.Process.Kill()
		_ = stdin.Close()
		_ = v.cmd.Wait()
	})
	return v
}

// fault is what happens to a process, and what ends it; without the latter it is dead.
type fault struct {
	name         string
	begins, ends func(v *victim)
}

var faults = []fault{
	{"kill -9", func(v *victim) { _ = v.cmd.Process.Kill() }, nil},
	{"SIGSTOP", func(v *victim) { _ = v.cmd.Process.Signal(syscall.SIGSTOP) }, func(v *victim) { _ = v.cmd.Process.Signal(syscall.SIGCONT) }},
	{"packets dropped", func(v *victim) { v.kafka.Freeze(); v.database.Freeze() }, func(v *victim) { v.kafka.Pass(); v.database.Pass() }},
}

// replace ends the fault, waits until the process has joined again, and starts another one in its place: with one
// that was suspected wrongly, the group would have twice as much patience in the next trial.
func (s *takeovers) replace(f fault, i int) {
	s.Helper()
	v := s.processes[i]
	if f.ends != nil {
		f.ends(v)
		s.balanced()
		_ = v.cmd.Process.Signal(syscall.SIGTERM)
	}
	_ = v.cmd.Wait()
	s.processes[i] = s.start()
}

func (s *takeovers) measure(trials int) {
	for _, f := range faults {
		var took []time.Duration
		for n := range trials {
			s.balanced()
			i := n % 2 // of whom one may be the group's leader
			took = append(took, s.trial(f, i))
			s.replace(f, i)
		}
		slices.Sort(took)
		s.Logf("| %s | %s | median %.2f s | 95 %% %.2f s | %v", s.Name(), f.name, took[len(took)/2].Seconds(), took[(len(took)*95+99)/100-1].Seconds(), took)
		if worst := took[len(took)-1]; s.spec.Patience == 0 && worst > 20*time.Second {
			s.Errorf("%s: it took %v, with a session timeout of 45 s", f.name, worst)
		}
	}
	s.balanced()
	s.until("each message to be applied once", `select not exists (select from effect group by partition having count(*) <> max(message_offset) + 1)`)
}

// balanced waits until each process has committed in half of the partitions within the last second, and nobody else has.
func (s *takeovers) balanced() {
	s.Helper()
	s.until("both to have half of the partitions", `select coalesce(array_agg(worker order by worker), '{}') = (select array_agg(w order by w) from unnest($1::text[]) w) and sum(n) = 8 and max(n) = 4
		from (select worker, count(distinct partition) as n from effect where at > clock_timestamp() - interval '1 s' group by worker) x`,
		[]string{s.processes[0].name, s.processes[1].name})
}

// trial returns the time from the fault to the first commit of the survivor in the last of the victim's partitions.
func (s *takeovers) trial(f fault, i int) time.Duration {
	s.Helper()
	var since time.Time
	var lost []int32
	if err := s.db.QueryRow(s.Context(), "select clock_timestamp(), array_agg(distinct partition) from effect where worker = $1 and at > clock_timestamp() - interval '1 s'",
		s.processes[i].name).Scan(&since, &lost); err != nil {
		s.Fatal(err)
	}
	f.begins(s.processes[i])
	const theirs = `from (select min(at) as at from effect where worker = $1 and partition = any ($2::int[]) and at > $3::timestamptz group by partition) first`
	args := []any{s.processes[1-i].name, lost, since}
	s.until("the survivor to commit in all of them", "select count(*) = cardinality($2::int[]) "+theirs, args...)
	var seconds float64
	if err := s.db.QueryRow(s.Context(), "select extract(epoch from max(at) - $3::timestamptz)::float8 "+theirs, args...).Scan(&seconds); err != nil {
		s.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

func (s *takeovers) until(what, query string, args ...any) {
	s.Helper()
	limit := time.After(3 * time.Minute)
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		var yes bool
		if err := s.db.QueryRow(s.Context(), query, args...).Scan(&yes); err != nil {
			s.Fatalf("%s: %v", what, err)
		}
		if yes {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			s.Fatalf("waited three minutes in vain for %s", what)
		}
	}
}
