//go:build unix

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
)

var takeover = struct {
	trials, without *int
	machine         *string
}{
	flag.Int("takeover.trials", 1, "how often TestRealTakeover has each fault, with the zero Options"),
	flag.Int("takeover.without", 0, "and without patience, which takes a minute each time"),
	flag.String("takeover.machine", "", "write what was measured to docs/failover.json, as of this machine: quiet or busy"),
}

// TestRealTakeover measures how long a survivor takes to commit in all partitions of a process that is killed,
// stopped, or cut off from the broker and the database. The servers have their defaults, and so have the
// clients. Two processes share eight partitions, to which messages come all the time, or eight jobs that work all the
// time. Each message is applied once, and in order.
func TestRealTakeover(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("set EPOCHFENCE_LONG=1")
	}
	var all takeoverFigures
	for _, kind := range []struct {
		name      string
		balancers []string
		broker    func(t *testing.T, spec *takeoverSpec)
	}{
		{"Kafka", []string{inRange, inCooperative, inKIP848}, func(t *testing.T, spec *takeoverSpec) {
			spec.Kafka = kafkatest.Start(t, kafkatest.Config{Properties: map[string]string{
				"group.min.session.timeout.ms": "6000", "group.initial.rebalance.delay.ms": "3000",
				"group.consumer.session.timeout.ms": "45000", "group.consumer.min.session.timeout.ms": "45000",
				"group.consumer.heartbeat.interval.ms": "5000", "group.consumer.min.heartbeat.interval.ms": "5000",
			}}).Addr
		}},
		{"NATS", []string{leaseOnNATS}, func(t *testing.T, spec *takeoverSpec) {
			spec.NATS = strings.TrimPrefix(natstest.Start(t).URL(), "nats://")
		}},
		{"jobs", []string{leaseOnPostgreSQL}, func(*testing.T, *takeoverSpec) {}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			var spec takeoverSpec
			kind.broker(t, &spec)
			for _, spec.Balancer = range kind.balancers {
				for _, spec.Patience = range []time.Duration{0, -1} {
					trials, name := *takeover.trials, spec.Balancer
					if spec.Patience < 0 {
						trials, name = *takeover.without, name+", without patience"
					}
					if trials > 0 {
						t.Run(name, func(t *testing.T) {
							all = append(all, newTakeovers(t, spec).measure(trials)...)
						})
					}
				}
			}
		})
	}
	t.Logf("median and 95th percentile of seconds\n\n%s", all.table())
	if *takeover.machine != "" && !t.Failed() {
		all.write(t, "../../docs/failover.json", *takeover.machine)
	}
}

type takeovers struct {
	*testing.T
	spec      takeoverSpec
	db        *pgx.Conn
	processes [2]*victim
	started   int
	sent      atomic.Int64      // to each partition
	stop      func() (sent int) // ends what comes to each partition; nil for jobs
}

// newTakeovers starts two processes. spec says where the broker is, if there is one.
func newTakeovers(t *testing.T, spec takeoverSpec) *takeovers {
	t.Helper()
	d := postgresOn(t, pgtest.Start(t)).granted()
	d.exec(`create table effect (id bigint generated always as identity, partition int, number bigint, worker text, at timestamptz default clock_timestamp());
		create index on effect (at); create index on effect (worker, partition, at)`)
	d.exec("grant insert on effect to " + d.role)
	name := strings.NewReplacer(",", "", " ", "-").Replace(fmt.Sprint(spec.Balancer, " ", spec.Patience))
	spec.Database, spec.Topic, spec.Group = d.url, name, name
	s := &takeovers{T: t, db: d.admin, spec: spec}
	switch {
	case spec.Kafka != "":
		s.produceKafka()
	case spec.NATS != "":
		s.publishNATS()
	}
	for i := range s.processes {
		s.processes[i] = s.start()
	}
	return s
}

func (s *takeovers) produceKafka() {
	s.Helper()
	createTopic(s.T, []kgo.Opt{kgo.SeedBrokers(s.spec.Kafka)}, s.spec.Topic, nil, takeoverParts)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.spec.Kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		s.Fatal(err)
	}
	s.produce(func(p int, value []byte) {
		client.Produce(context.Background(), &kgo.Record{Topic: s.spec.Topic, Partition: int32(p), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				s.Errorf("produce: %v", err)
			}
		})
	}, func() {
		if err := client.Flush(context.Background()); err != nil {
			s.Error(err)
		}
		client.Close()
	})
}

func (s *takeovers) publishNATS() {
	s.Helper()
	conn, err := nats.Connect("nats://" + s.spec.NATS)
	if err != nil {
		s.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := js.CreateStream(s.Context(), jetstream.StreamConfig{Name: s.spec.Topic, Subjects: []string{s.spec.Topic + ".*"}}); err != nil {
		s.Fatal(err)
	}
	s.produce(func(p int, value []byte) {
		subject := fmt.Sprintf("%s.%d", s.spec.Topic, p)
		if _, err := js.Publish(context.Background(), subject, value, jetstream.WithMsgID(subject+string(value))); err != nil {
			s.Errorf("publish: %v", err)
		}
	}, conn.Close)
}

// produce sends to each partition all the time, until stop: there the numbers from 0 on.
func (s *takeovers) produce(send func(partition int, value []byte), end func()) {
	var work sync.WaitGroup
	stopping := make(chan struct{})
	work.Go(func() {
		tick := time.NewTicker(takeoverEvery)
		defer tick.Stop()
		for ; ; s.sent.Add(1) {
			select {
			case <-stopping:
				return
			case <-tick.C:
			}
			for p := range takeoverParts {
				send(p, fmt.Append(nil, s.sent.Load()))
			}
		}
	})
	s.stop = sync.OnceValue(func() int {
		close(stopping)
		work.Wait()
		end()
		return int(s.sent.Load())
	})
	s.Cleanup(func() { s.stop() })
}

// victim is a worker process, with its ways to the broker and to the database.
type victim struct {
	name  string
	cmd   *exec.Cmd
	began time.Time
	log   processLog
	links []*proxy.Proxy
}

func (s *takeovers) start() *victim {
	s.Helper()
	s.started++
	v, spec := &victim{name: fmt.Sprintf("w%d", s.started), began: time.Now()}, s.spec
	spec.Name = v.name
	through := func(address string) string {
		p, err := proxy.New(func() (string, bool) { return address, true })
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(p.Close)
		v.links = append(v.links, p)
		return p.Address()
	}
	for _, broker := range []*string{&spec.Kafka, &spec.NATS} {
		if *broker != "" {
			*broker = through(*broker)
		}
	}
	config, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		s.Fatal(err)
	}
	at := net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
	spec.Database = strings.Replace(spec.Database, at, through(at), 1)
	v.cmd = startWorker(s.T, v.name, takeoverEnv, spec, &v.log)
	return v
}

// fault is what happens to a process, and what ends it; without the latter it is dead.
type fault struct {
	name         string
	begins, ends func(v *victim)
}

var faults = []fault{
	{"killed", func(v *victim) { _ = v.cmd.Process.Kill() }, nil},
	{"frozen", func(v *victim) { _ = v.cmd.Process.Signal(syscall.SIGSTOP) }, func(v *victim) { _ = v.cmd.Process.Signal(syscall.SIGCONT) }},
	{"cut off", func(v *victim) { v.each((*proxy.Proxy).Freeze) }, func(v *victim) { v.each((*proxy.Proxy).Pass) }},
}

func (v *victim) each(do func(*proxy.Proxy)) {
	for _, link := range v.links {
		do(link)
	}
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

func (s *takeovers) measure(trials int) (figures takeoverFigures) {
	for _, f := range faults {
		var took []time.Duration
		for n := range trials {
			s.balanced()
			i := n % 2 // of whom one may be the group's leader
			took = append(took, s.trial(f, i))
			s.replace(f, i)
		}
		slices.Sort(took)
		one := takeoverFigure{Members: s.spec.Balancer, Fault: f.name, Without: s.spec.Patience < 0, Trials: trials, took: took}
		one.Median, one.P95 = took[len(took)/2].Seconds(), took[(len(took)*95+99)/100-1].Seconds()
		s.Logf("%s: median %.2f s, 95 %% %.2f s, %v", f.name, one.Median, one.P95, took)
		if most := s.most(); one.P95 > most.Seconds() {
			s.Errorf("%s: the 95th percentile is %.1f s, want up to %v", f.name, one.P95, most)
		}
		figures = append(figures, one)
	}
	s.balanced()
	s.exact()
	return figures
}

// most bounds the 95th percentile, also on a machine with much else to do: without patience, at least 40 s pass on Kafka
// and 10 s with leases.
func (s *takeovers) most() time.Duration {
	switch {
	case s.spec.Patience < 0:
		return 2 * time.Minute
	case s.spec.Kafka != "":
		return 20 * time.Second
	default:
		return 8 * time.Second
	}
}

// exact drains the group. The n-th effect of each partition is that of its n-th message: none is lost, doubled or out
// of order. A job has no last step.
func (s *takeovers) exact() {
	s.Helper()
	if s.stop != nil {
		s.until("all messages to be applied", "select count(*) >= $1 from effect", s.stop()*takeoverParts)
	}
	var effects, wrong, partitions int
	if err := s.db.QueryRow(s.Context(), `select count(*), count(*) filter (where number <> nth), count(distinct partition)
		from (select partition, number, row_number() over (partition by partition order by id) - 1 as nth from effect) numbered`).Scan(&effects, &wrong, &partitions); err != nil {
		s.Fatal(err)
	}
	if wrong > 0 || partitions != takeoverParts || s.stop != nil && effects != s.stop()*takeoverParts {
		s.Errorf("%d effects in %d partitions, of which %d are not that of the next message", effects, partitions, wrong)
	}
	s.Logf("%d effects, each once and in order", effects)
}

// balanced waits until each process has committed in half of the partitions within the last second, and nobody else has.
// A process that has just started suspects nobody before it has looked for a patience. Then it waits until what had been
// sent is applied: a takeover is no measure of a backlog.
func (s *takeovers) balanced() {
	s.Helper()
	for _, v := range s.processes {
		<-time.After(time.Until(v.began.Add(4 * time.Second)))
	}
	s.until("both to have half of the partitions", `select coalesce(array_agg(worker order by worker), '{}') = (select array_agg(w order by w) from unnest($1::text[]) w) and sum(n) = 8 and max(n) = 4
		from (select worker, count(distinct partition) as n from effect where at > clock_timestamp() - interval '1 s' group by worker) x`,
		[]string{s.processes[0].name, s.processes[1].name})
	s.until("both to have caught up", `select count(*) = 8 from (select max(number) as newest from effect where at > clock_timestamp() - interval '1 s' group by partition) x
		where newest + 1 >= $1`, s.sent.Load())
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
	survivor := s.processes[1-i]
	survivor.log.cut()
	f.begins(s.processes[i])
	const theirs = `from (select min(at) as at from effect where worker = $1 and partition = any ($2::int[]) and at > $3::timestamptz group by partition) first`
	args := []any{survivor.name, lost, since}
	s.until("the survivor to commit in all of them", "select count(*) = cardinality($2::int[]) "+theirs, args...)
	var seconds float64
	if err := s.db.QueryRow(s.Context(), "select extract(epoch from max(at) - $3::timestamptz)::float8 "+theirs, args...).Scan(&seconds); err != nil {
		s.Fatal(err)
	}
	took := time.Duration(seconds * float64(time.Second))
	if took > s.most()/4 && s.spec.Patience == 0 {
		s.Logf("%s: it took %v from %v on, and the survivor logged\n%s", f.name, took, since, survivor.log.cut())
	}
	return took
}

func (s *takeovers) until(what, query string, args ...any) {
	s.Helper()
	limit := time.After(3 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
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
