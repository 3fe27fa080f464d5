package natssource

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
)

// TestBalance64 measures how 64 partitions move when members join and leave:
//
//	go test ./consumer/natssource -run TestBalance64 -v
func TestBalance64(t *testing.T) {
	r := newGroupRig(t, 64, 15*time.Second)
	r.quiet = true
	var ms []*testMember
	table := newTable("members", "time to balance", "moves", "moves needed", "each holds", "most above its share")
	change := func(name string, needed int, do func()) {
		before := r.granted()
		began := time.Now()
		do()
		share := 64 / len(ms)
		most := 0
		eventually(t, name+": the partitions are shared out", func() bool {
			held, all := r.held(ms), 0
			for _, n := range held {
				all += n
			}
			return all == 64 && slices.Max(held)-slices.Min(held) <= 1
		})
		took := time.Since(began)
		r.still(ms)
		held := r.held(ms)
		for _, n := range held {
			most = max(most, n-share)
		}
		moves := r.granted() - before
		table.row(name, took.Round(time.Millisecond), moves, needed, held, most)
		if most > 1 {
			t.Errorf("%s: %v, %d above the share of %d", name, held, most, share)
		}
		if moves > needed+needed/10 {
			t.Errorf("%s: %d moves, %d are needed", name, moves, needed)
		}
	}
	change("0 -> 1", 64, func() { ms = append(ms, r.start("m0")) })
	change("1 -> 4", 48, func() {
		for i := range 3 {
			ms = append(ms, r.start(fmt.Sprint("m", i+1)))
		}
	})
	change("4 -> 3", 16, func() { ms[1].stop(); ms = slices.Delete(ms, 1, 2) })
	change("3 -> 4", 16, func() { ms = append(ms, r.start("m4")) })
	t.Logf("64 partitions, a lease TTL of %v, an embedded server:\n%s", r.ttl, table)
}

// granted counts the tenures there have been.
func (r *groupRig) granted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.grants)
}

// held says how many partitions each member holds.
func (r *groupRig) held(ms []*testMember) []int {
	var held []int
	for _, m := range ms {
		held = append(held, len(m.holding()))
	}
	return held
}

// still checks that nothing moves any more, for a while.
func (r *groupRig) still(ms []*testMember) {
	r.t.Helper()
	before, held := r.granted(), r.held(ms)
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	if now := r.granted(); now != before || !slices.Equal(held, r.held(ms)) {
		r.t.Errorf("partitions continue moving: %v, then %v after %d grants", held, r.held(ms), now-before)
	}
}

// TestTakeover measures how long a partition is without an owner after its
// member left in order, was cut off, and was killed:
//
//	go test ./consumer/natssource -run TestTakeover -v
//
// It bounds them: a release is taken over at once, and the rest after the TTL
// at most, with the second in which the server counts TTLs.
func TestTakeover(t *testing.T) {
	long(t)
	const ttl, granularity = 3 * time.Second, 1500 * time.Millisecond
	table := newTable("how the member went", "partitions", "least", "median", "90%", "most", "bound")
	one := func(t *testing.T) *groupRig { return newGroupRig(t, 64, ttl) }
	three := func(t *testing.T) *groupRig { r, _ := newClusterRig(t, 64, ttl); return r }
	measure := func(how string, rig func(*testing.T) *groupRig, bound time.Duration, begin func(t *testing.T, r *groupRig) (gone []int32, at time.Time, survivor *testMember)) {
		t.Run(how, func(t *testing.T) {
			r := rig(t)
			r.quiet = true
			partitions, at, survivor := begin(t, r)
			pulse := r.pulse()
			var took []time.Duration
			for _, n := range partitions {
				took = append(took, survivor.granted(n).at.Sub(at))
			}
			slices.Sort(took)
			most := took[len(took)-1]
			table.row(how, len(took), round(took[0]), round(took[len(took)/2]), round(took[len(took)*9/10]), round(most), bound)
			if stalled := pulse.Stalled(); most > bound+stalled {
				t.Errorf("taken over after up to %v, want %v at most, and the server had answered nobody for %v", most, bound, stalled)
			}
		})
	}
	two := func(t *testing.T, r *groupRig) (survivor, other *testMember, partitions []int32) {
		survivor = r.start("survivor")
		r.shared([]*testMember{survivor}, 64)
		other = r.start("other")
		r.shared([]*testMember{survivor, other}, 32, 32)
		for _, g := range other.holding() {
			partitions = append(partitions, g.Origin().Partition.Number)
		}
		return survivor, other, partitions
	}
	release := func(t *testing.T, r *groupRig) ([]int32, time.Time, *testMember) {
		survivor, other, partitions := two(t, r)
		at := time.Now()
		other.stop()
		return partitions, at, survivor
	}
	cut := func(t *testing.T, r *groupRig) ([]int32, time.Time, *testMember) {
		survivor, other, partitions := two(t, r)
		r.renewed(partitions)
		at := time.Now()
		other.wires.hold(true, true)
		return partitions, at, survivor
	}
	measure("released", one, 900*time.Millisecond, release)
	measure("released, three nodes", three, 900*time.Millisecond, release)
	measure("cut off", one, ttl+granularity, cut)
	measure("cut off, three nodes", three, ttl+granularity, cut)
	measure("SIGKILL", one, ttl+granularity, func(t *testing.T, r *groupRig) ([]int32, time.Time, *testMember) {
		survivor := r.start("survivor")
		r.shared([]*testMember{survivor}, 64)
		kill := r.startProcess(t)
		r.shared([]*testMember{survivor}, 32)
		var partitions []int32
		mine := survivor.holding()
		for n := range int32(64) {
			if !slices.ContainsFunc(mine, func(g *grant) bool { return g.Origin().Partition.Number == n }) {
				partitions = append(partitions, n)
			}
		}
		eventually(t, "the other process holds them", func() bool {
			for _, n := range partitions {
				if now, e := r.lease(n); !e.live || !strings.HasPrefix(now.Owner, processName+"@") {
					return false
				}
			}
			return true
		})
		r.renewed(partitions)
		at := time.Now()
		kill()
		return partitions, at, survivor
	})
	t.Logf("32 partitions change hands, a lease TTL of %v, embedded servers:\n%s", ttl, table)
}

// renewed waits until the registrations that the leases name were renewed twice.
func (r *groupRig) renewed(partitions []int32) {
	r.t.Helper()
	registration := func(n int32) uint64 {
		l, _ := r.lease(n)
		e, err := r.bucket().get(inTime(r.t), memberKey(l.Member))
		must(r.t, err)
		return e.rev
	}
	for range 2 {
		before := map[int32]uint64{}
		for _, n := range partitions {
			before[n] = registration(n)
		}
		eventually(r.t, "the registrations are renewed", func() bool {
			return !slices.ContainsFunc(partitions, func(n int32) bool { return registration(n) == before[n] })
		})
	}
}

const (
	processName = "process"
	processURL  = "EPOCHFENCE_TEST_MEMBER_OF"
	processTTL  = "EPOCHFENCE_TEST_MEMBER_TTL"
)

// startProcess starts a member in a process of its own, which holds what it is
// granted. kill kills it.
func (r *groupRig) startProcess(t *testing.T) (kill func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestMemberProcess$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), processURL+"="+r.server.URL(), processTTL+"="+r.ttl.String())
	cmd.Stderr = os.Stderr
	incarnation, err := cmd.StdinPipe() // which ends with this process
	must(t, err)
	must(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = incarnation.Close()
	}
	t.Cleanup(kill)
	return kill
}

// TestMemberProcess is the other process of startProcess.
func TestMemberProcess(t *testing.T) {
	url := os.Getenv(processURL)
	if url == "" {
		t.Skip("not started by another test")
	}
	ttl, err := time.ParseDuration(os.Getenv(processTTL))
	must(t, err)
	nc, err := nats.Connect(url)
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	stream := Stream{Name: "orders"}
	for n := range 64 {
		stream.Filters = append(stream.Filters, fmt.Sprintf("orders.%d", n))
	}
	s, err := New(Options{
		Group: "billing", JetStream: js, Streams: []Stream{stream}, Bucket: "leases", LeaseTTL: ttl, Name: processName,
		Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
	}()
	must(t, s.Run(ctx, func(error) {}, func(ctx context.Context, t consumer.Tenure) {
		select {
		case <-t.Draining():
		case <-ctx.Done():
		}
	}))
}

func round(d time.Duration) time.Duration { return d.Round(cmp.Or(d/1000, 1)).Round(time.Millisecond) }

// table is what a measurement prints.
type table struct {
	text strings.Builder
	out  *tabwriter.Writer
}

func newTable(head ...any) *table {
	t := &table{}
	t.out = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', 0)
	t.row(head...)
	return t
}

func (t *table) row(cells ...any) {
	for _, c := range cells {
		fmt.Fprintf(t.out, "%v\t", c)
	}
	fmt.Fprintln(t.out)
}

func (t *table) String() string {
	_ = t.out.Flush() // into memory
	return t.text.String()
}

// A partition is given back for a member that is gone before it takes it, so that we have it
// again; the one that joins next gets its share all the same.
func TestAMemberThatJoinsAfterOneThatNeverTookItsShareGetsIts(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 10*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 2)
	r.put(memberKey("ghost"), []byte(`{"name":"ghost","serves":{"orders":2},"nonce":"n"}`))
	r.shared([]*testMember{a}, 1)
	must(t, r.bucket().remove(inTime(t), memberKey("ghost")))
	r.shared([]*testMember{a}, 2)
	began := time.Now()
	b := r.start("b")
	r.shared([]*testMember{a, b}, 1, 1)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
