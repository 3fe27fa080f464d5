//go:build unix

package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
)

// storms is a group of processes on one topic and one database.
type storms struct {
	*testing.T
	spec      takeoverSpec
	db        *pgx.Conn
	processes []*stormProcess
	produced  []int64
	calm      func() // ends the messages
}

type stormProcess struct {
	cmd      *exec.Cmd
	stdin    io.Writer
	heard    chan struct{} // closed at the end of its standard output
	database *proxy.Proxy

	mu      sync.Mutex
	removed int
}

func newStorms(t *testing.T, addr, balancer string, pooled bool) *storms {
	t.Helper()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true}) // with autovacuum
	d := postgresOn(t, server.Database(t)).granted()
	d.exec(`create table effect (id bigint generated always as identity, partition int, message_offset bigint, worker text, at timestamptz default clock_timestamp());
		create index on effect (partition, message_offset)`)
	d.exec("grant insert on effect to " + d.role)
	url := d.url
	if pooled {
		url = pgtest.StartBouncer(t, d.url).URL + "&" + pooledMode
	}
	name := "storm-" + strings.ToLower(strings.NewReplacer("/", "-", " ", "-", "#", "-").Replace(t.Name()))
	s := &storms{T: t, db: d.admin, spec: takeoverSpec{Kafka: addr, Database: url, Topic: name, Group: name, Balancer: balancer}, produced: make([]int64, stormParts)}
	createTopic(t, []kgo.Opt{kgo.SeedBrokers(addr)}, name, nil, stormParts)
	s.produce(addr, d.db.Superuser(t))
	for i := range stormProcesses {
		s.processes = append(s.processes, s.start(i+1))
	}
	s.balanced()
	return s
}

func (s *storms) start(n int) *stormProcess {
	s.Helper()
	p, spec := &stormProcess{heard: make(chan struct{})}, s.spec
	spec.Name = fmt.Sprint("w", n)
	config, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		s.Fatal(err)
	}
	at := net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
	if p.database, err = proxy.New(func() (string, bool) { return at, true }); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(p.database.Close)
	spec.Database = strings.Replace(spec.Database, at, p.database.Address(), 1)
	p.cmd = workerCommand(s, stormEnv, spec)
	var log bytes.Buffer
	p.cmd.Stderr = &log
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		s.Fatal(err1, err2)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go p.hear(stdout)
	s.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.ended()
		if s.Failed() {
			s.Logf("%s logged\n%s", spec.Name, log.Bytes()[max(0, log.Len()-6000):])
		}
	})
	return p
}

func (p *stormProcess) hear(stdout io.Reader) {
	defer close(p.heard)
	for out := bufio.NewScanner(stdout); out.Scan(); {
		if strings.HasPrefix(out.Text(), saidSuspected) {
			p.mu.Lock()
			p.removed++
			p.mu.Unlock()
		}
	}
}

// produce keeps messages waiting in each partition.
func (s *storms) produce(addr string, db *pgx.Conn) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(client.Close)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	s.calm = func() { cancel(); work.Wait() }
	s.Cleanup(s.calm)
	work.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			applied, err := positions(context.Background(), db)
			if err != nil {
				s.Errorf("read the positions: %v", err)
				return
			}
			for p, next := range applied {
				for ; s.produced[p] < next+stormLead; s.produced[p]++ {
					client.Produce(context.Background(), &kgo.Record{Topic: s.spec.Topic, Partition: int32(p), Value: []byte("message")}, func(_ *kgo.Record, err error) {
						if err != nil {
							s.Errorf("produce: %v", err)
						}
					})
				}
			}
		}
		if err := client.Flush(context.Background()); err != nil {
			s.Errorf("flush: %v", err)
		}
	})
}

// positions returns of each partition the offset after the last one that is applied.
func positions(ctx context.Context, db *pgx.Conn) ([]int64, error) {
	rows, err := db.Query(ctx, "select coalesce((select max(message_offset) + 1 from effect where partition = p), 0) from generate_series(0, $1::int - 1) p order by p", stormParts)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// rate returns how many messages a second are applied during that time, and calls act every 5 s from its start on.
func (s *storms) rate(length time.Duration, act func()) float64 {
	s.Helper()
	began, before := time.Now(), s.applied()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for over := time.After(length); ; {
		if act != nil && time.Since(began) < length-time.Second {
			act()
		}
		select {
		case <-tick.C:
			continue
		case <-over:
		}
		return float64(s.applied()-before) / time.Since(began).Seconds()
	}
}

func (s *storms) applied() (sum int64) {
	s.Helper()
	for _, next := range s.positions() {
		sum += next
	}
	return sum
}

func (s *storms) positions() []int64 {
	s.Helper()
	all, err := positions(s.Context(), s.db)
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// settles waits until the group is balanced after a storm, and returns how long that takes.
func (s *storms) settles() time.Duration {
	s.Helper()
	took := s.balanced()
	if took > *stormFlags.settles {
		s.Errorf("it took %v until the group was balanced, want %v", took, *stormFlags.settles)
	}
	return took
}

// balanced waits until each process applies messages of a third of the partitions, and returns how long that takes.
func (s *storms) balanced() time.Duration {
	s.Helper()
	var since time.Time
	if err := s.db.QueryRow(s.Context(), "select clock_timestamp()").Scan(&since); err != nil {
		s.Fatal(err)
	}
	return s.until("each process to have a third of the partitions", `select coalesce(sum(n) = $1 and count(*) = $2 and max(n) * $2 = $1, false) from (
		select worker, count(*) as n from generate_series(0, $1::int - 1) p cross join lateral (
			select worker, at from effect where partition = p order by message_offset desc limit 1) last
		where at > $3::timestamptz group by worker) x`, stormParts, stormProcesses, since)
}

// reportMoves reports for how long partitions were without commits because another process got them.
func (s *storms) reportMoves(removals int) {
	s.Helper()
	var moves int
	var middle, sum float64
	if err := s.db.QueryRow(s.Context(), `select count(*), coalesce(percentile_cont(0.5) within group (order by gap), 0), coalesce(sum(gap), 0) from (
		select worker, lag(worker) over w as before, extract(epoch from at - lag(at) over w)::float8 as gap
		from effect window w as (partition by partition order by id)) x where worker <> before`).Scan(&moves, &middle, &sum); err != nil {
		s.Fatal(err)
	}
	s.report("%d moves of partitions, without commits for %.2f s at the median; a removal cost %.1f s of one partition", moves, middle, sum/float64(removals))
}

// finish ends the messages, and checks that each was applied once, and those of a partition in order.
func (s *storms) finish() {
	s.Helper()
	s.calm()
	var sum int64
	for _, n := range s.produced {
		sum += n
	}
	s.until("all messages to be applied", "select sum(coalesce((select max(message_offset) + 1 from effect where partition = p), 0)) >= $1::bigint from generate_series(0, $2::int - 1) p", sum, stormParts)
	var applied, wrong int64
	if err := s.db.QueryRow(s.Context(), `select count(*), count(*) filter (where message_offset <> n - 1)
		from (select message_offset, row_number() over (partition by partition order by id) as n from effect) x`).Scan(&applied, &wrong); err != nil {
		s.Fatal(err)
	}
	if s.Logf("%d messages are applied", applied); applied != sum || wrong != 0 {
		s.Errorf("%d effects of %d messages, of which %d are not in their place", applied, sum, wrong)
	}
	for _, p := range s.processes {
		if err := errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.ended()); err != nil {
			s.Errorf("a process ended with %v", err)
		}
	}
}

// ended waits for the process, whose output has to be read first.
func (p *stormProcess) ended() error {
	<-p.heard
	return p.cmd.Wait()
}

// until waits for three minutes, and returns how long it took.
func (s *storms) until(what, query string, args ...any) time.Duration {
	s.Helper()
	began := time.Now()
	for tick := time.NewTicker(100 * time.Millisecond); ; <-tick.C {
		var yes bool
		if err := s.db.QueryRow(s.Context(), query, args...).Scan(&yes); err != nil {
			s.Fatalf("%s: %v", what, err)
		}
		if yes {
			return time.Since(began)
		}
		if time.Since(began) > 3*time.Minute {
			s.Fatalf("waited three minutes in vain for %s", what)
		}
	}
}

// livingMember returns the id of a member at random, or none while all join again.
func (s *storms) livingMember() (id string) {
	s.Helper()
	err := s.db.QueryRow(s.Context(), "select member from epochfence.peer where member <> '' and member <> suspected order by random() limit 1").Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		s.Fatal(err)
	}
	return id
}

// tell tells all processes whom to suspect.
func (s *storms) tell(line string) {
	s.Helper()
	for _, p := range s.processes {
		if _, err := fmt.Fprintln(p.stdin, line); err != nil {
			s.Fatal(err)
		}
	}
}

// removed returns how many suspicions the group has agreed on, of each of which the member is removed.
func (s *storms) removed() (n int) {
	for _, p := range s.processes {
		p.mu.Lock()
		n += p.removed
		p.mu.Unlock()
	}
	return n
}

// some returns n processes at random.
func (s *storms) some(n int) []*stormProcess {
	all := slices.Clone(s.processes)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:n]
}

func (s *storms) signal(p *stormProcess, signal syscall.Signal) {
	s.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		s.Fatal(err)
	}
}

// wait lets a fault last.
func (s *storms) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.Context().Done():
	}
}

func (s *storms) report(format string, args ...any) {
	s.Helper()
	s.Logf("| %s | %s", s.Name(), fmt.Sprintf(format, args...))
}

// spread returns the median and the maximum.
func spread(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("%.1f s at the median, %.1f s at worst", took[len(took)/2].Seconds(), took[len(took)-1].Seconds())
}
