package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestPeopleActBesideALiveConsumerOnPostgres(t *testing.T) {
	t.Parallel()
	d := newPostgres(t).granted()
	role, url := d.db.Role(t)
	sql, err := pgsink.GrantOperatorSQL(role, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d.exec(sql)
	d.exec("grant " + d.role + " to " + role)
	op, err := pgsink.OpenOperator(t.Context(), newPool(t, url), pgsink.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	actBeside(t, op, d.sink, d.handle, d.sink.DeadLetter, d.applied)
}

func TestPeopleActBesideALiveConsumerOnSQLite(t *testing.T) {
	t.Parallel()
	d := newSQLite(t)
	op, err := sqlsink.OpenOperator(t.Context(), d.db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	actBeside(t, op, d.sink, d.handle, d.sink.DeadLetter, d.applied)
}

// acting is an operator beside a group that consumes two partitions.
type acting struct {
	testing.TB
	op operate.Operator
}

func (a *acting) sees(p epoch.Partition) operate.Partition {
	a.Helper()
	f, err := a.op.Partition(a.Context(), p)
	if err != nil {
		a.Fatal(err)
	}
	return f
}

// does has an act done, as often as it takes to come between two transactions of the owner.
func (a *acting) does(p epoch.Partition, act func(seen epoch.Fence) operate.Act) epoch.Fence {
	a.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		f, err := a.op.Act(a.Context(), act(a.sees(p).Fence))
		switch {
		case err == nil:
			return f
		case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrMoved):
		default:
			a.Fatal(err)
		}
	}
	a.Fatalf("no act on %s came between two transactions in %v", p, patience)
	return epoch.Fence{}
}

// until waits until the fence of p is so.
func (a *acting) until(what string, p epoch.Partition, holds func(now operate.Partition) bool) {
	a.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); ; {
		now, err := a.op.Partition(a.Context(), p)
		if err != nil && !errors.Is(err, epoch.ErrMissing) {
			a.Fatal(err)
		}
		if err == nil && holds(now) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			a.Fatalf("waited %v in vain until %s: %+v", patience, what, now)
		}
	}
}

// goesOn waits until the owner has claimed again after f, and applied more.
func (a *acting) goesOn(p epoch.Partition, f epoch.Fence) {
	a.Helper()
	a.until("the owner continues", p, func(now operate.Partition) bool {
		return now.Epoch > f.Epoch && operate.OperatorOf(now.Owner) == "" && now.Next > f.Next+3
	})
}

// hears waits until a consumer has reported the pause of p.
func (a *acting) hears(p epoch.Partition, paused epoch.Fence, rs ...*running) {
	a.Helper()
	a.until("the pause is reported", p, func(operate.Partition) bool {
		for _, r := range rs {
			for _, e := range r.seen() {
				var no *epoch.PausedError
				if h, ok := e.(consumer.Halted); ok && errors.As(h.Err, &no) && no.Partition == p && no.Since.Equal(paused.Pause.Since) {
					return true
				}
			}
		}
		return false
	})
}

func to(kind operate.ActKind, at func(seen epoch.Fence) epoch.Offset) func(epoch.Fence) operate.Act {
	return func(seen epoch.Fence) operate.Act {
		a := operate.NewAct(kind, seen, "anna", "for the test")
		a.To = &epoch.Position{Offset: at(seen), Mark: epoch.NoMark}
		return a
	}
}

func only(kind operate.ActKind) func(epoch.Fence) operate.Act {
	return func(seen epoch.Fence) operate.Act { return operate.NewAct(kind, seen, "anna", "for the test") }
}

// actBeside has people do everything there is to the partitions of a live group of two,
// and then compares each effect with what the audit log says was applied.
func actBeside[TX any](t *testing.T, op operate.Operator, sink epoch.Sink[TX], handle consumer.Handler[TX], deadLetter consumer.FailureHandler[TX], applied func() []effect) {
	c := newCluster(t, kfake.SeedTopics(2, topic))
	var fixed atomic.Bool
	var at [2]atomic.Int64 // the offset that was handled last, of each partition
	poison := func(o epoch.Offset) bool { return o%50 == 7 }
	h := consumer.Each(func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		at[m.Partition.Number].Store(int64(m.Offset))
		if poison(m.Offset) && !fixed.Load() {
			return consumer.Permanent(errors.New("poison"))
		}
		m.Key = fmt.Appendf(nil, "%d", e)
		m.Value = fmt.Appendf(nil, "%d %d", m.Partition.Number, m.Offset)
		return handle(ctx, tx, m, e)
	}).OnFailure(deadLetter)
	few := func(o *consumer.Options) { o.MaxBatch = 4 }
	a := start(t, newSource(t, from(reach(c))), sink, h, few)
	b := start(t, newSource(t, from(reach(c))), sink, h, few)
	records := keepProducing(t, reach(c), func() int64 { return max(at[0].Load(), at[1].Load()) })

	human := &acting{t, op}
	ps := []epoch.Partition{part(group, topic), part(group, topic)}
	ps[1].Number = 1
	for _, r := range []*running{a, b} { // and the group is at rest
		r.until("it has claimed a partition", func(es []consumer.Event) bool {
			return slices.ContainsFunc(es, func(e consumer.Event) bool { _, ok := e.(consumer.Claimed); return ok })
		})
	}
	for _, p := range ps {
		human.until("its first messages are applied", p, func(now operate.Partition) bool { return now.Applied && now.Next > 30 })
	}
	for round := range 3 {
		p := ps[round%2]
		human.goesOn(p, human.does(p, to(operate.ActRewind, func(f epoch.Fence) epoch.Offset { return max(0, f.Next-25) })))
		human.goesOn(p, human.does(p, to(operate.ActSkip, func(f epoch.Fence) epoch.Offset {
			records.reach(f.Next + 7) // an end that is passed over would be a log that was truncated
			return f.Next + 7
		})))
		human.goesOn(p, human.does(p, only(operate.ActEvict)))
		paused := human.does(p, only(operate.ActPause))
		human.hears(p, paused, a, b)
		other := human.sees(ps[1-round%2])
		human.until("the other partition continues", ps[1-round%2], func(now operate.Partition) bool { return now.Next > other.Next })
		moved := human.does(p, to(operate.ActRewind, func(f epoch.Fence) epoch.Offset { return f.Next - 5 }))
		if moved.Epoch != paused.Epoch+1 || moved.Next != paused.Next-5 {
			t.Errorf("while it was paused, the fence went from\n%+v to\n%+v", paused, moved)
		}
		human.goesOn(p, human.does(p, only(operate.ActResume)))
	}
	end := records.end()
	for _, p := range ps {
		human.until("all is applied", p, func(now operate.Partition) bool { return now.Next == end })
	}

	fixed.Store(true)
	letters, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{Limit: 10_000})
	if err != nil || len(letters) == 0 {
		t.Fatalf("dead letters: %v, %v", letters, err)
	}
	for _, l := range letters {
		if _, err := op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range ps {
		human.until("the dead letters are replayed", p, func(now operate.Partition) bool { return now.DeadLetters == 0 })
	}
	a.stop()
	b.stop()
	for _, r := range []*running{a, b} {
		none[consumer.WentBack](r)
		for _, e := range r.seen() {
			var err error
			switch e := e.(type) {
			case consumer.Halted:
				err = e.Err
			case consumer.Unrecorded:
				err = e.Err
			default:
				continue
			}
			if !errors.Is(err, epoch.ErrPaused) && !terminated(err) {
				t.Errorf("%T%+v", e, e)
			}
		}
	}
	human.compare(ps, poison, applied())
}

// terminated: an act ends the connection on which it has seen the transaction of an owner. By
// then that one may have another, which is to claim, say.
func terminated(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "57P01"
}

// producing sends records to both partitions, the same number to each.
type producing struct {
	testing.TB
	client *kgo.Client
	sent   atomic.Int64 // to each
	stop   context.CancelFunc
	over   chan struct{}
}

// keepProducing sends a few records now and then until it is ended, but no more than 200 ahead of the faster
// partition: on a busy machine the consumers would not get through more in time.
func keepProducing(t *testing.T, client []kgo.Opt, handled func() int64) *producing {
	cl, err := kgo.NewClient(append(slices.Clone(client), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p := &producing{TB: t, client: cl, stop: stop, over: make(chan struct{})}
	go func() {
		defer close(p.over)
		for ctx.Err() == nil {
			if p.sent.Load() < handled()+200 {
				p.send(10)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { p.end(); cl.Close() })
	return p
}

func (p *producing) send(n int) {
	var rs []*kgo.Record
	for partition := range int32(2) {
		for range n {
			rs = append(rs, &kgo.Record{Topic: topic, Partition: partition, Value: []byte("x")})
		}
	}
	if err := p.client.ProduceSync(p.Context(), rs...).FirstErr(); err != nil {
		p.Errorf("produce: %v", err)
		return
	}
	p.sent.Add(int64(n))
}

// reach sends records until there are some behind an offset of each partition.
func (p *producing) reach(at epoch.Offset) {
	for !p.Failed() && p.sent.Load() <= int64(at) {
		p.send(100)
	}
}

// end stops it and returns where the partitions end.
func (p *producing) end() epoch.Offset {
	p.stop()
	<-p.over
	return epoch.Offset(p.sent.Load())
}

// compare compares effects with the spans of the audit log: each message of a span was
// applied under its claim, once, and those that are poison when they were replayed.
func (a *acting) compare(ps []epoch.Partition, poison func(epoch.Offset) bool, effects []effect) {
	a.Helper()
	var want, got []string
	for _, p := range ps {
		ds, err := a.op.History(a.Context(), operate.HistoryQuery{Partition: &p, Limit: 100_000})
		if err != nil {
			a.Fatal(err)
		}
		slices.Reverse(ds)
		seen := map[operate.DecisionKind]int{}
		var last *operate.Decision
		until := func(end epoch.Offset) {
			for o := last.To; o < end; o++ {
				if last.By != "" {
					a.Errorf("offset %d was applied under an operator's act: %+v", o, last)
				}
				if !poison(o) {
					want = append(want, fmt.Sprintf("%d %d@%d", p.Number, o, last.Epoch))
				}
			}
		}
		for _, d := range ds {
			seen[d.Kind]++
			if d.Kind == operate.DecidedReplay {
				want = append(want, fmt.Sprintf("%d %d@%d", p.Number, d.From, d.Epoch))
			}
			if d.Kind.ReplacesClaim() {
				if last != nil {
					until(d.From)
				}
				last = &d
			}
		}
		until(a.sees(p).Next)
		for _, kind := range []operate.DecisionKind{"claim", "rewind", "skip", "evict", "pause", "resume", "halt", "replay"} {
			if seen[kind] == 0 {
				a.Errorf("there is no %s of %s in the audit log: %v", kind, p, seen)
			}
		}
		if seen["stale"]+seen["in-doubt"] == 0 {
			a.Errorf("no owner was refused, or lost its connection: %v", seen)
		}
	}
	for _, e := range effects {
		got = append(got, e.value+"@"+e.key)
	}
	byPlace := func(s string) (n, o, e int) {
		f := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '@' })
		n, _ = strconv.Atoi(f[0])
		o, _ = strconv.Atoi(f[1])
		e, _ = strconv.Atoi(f[2])
		return n, o, e
	}
	order := func(x, y string) int {
		xn, xo, xe := byPlace(x)
		yn, yo, ye := byPlace(y)
		return slices.Compare([]int{xn, xo, xe}, []int{yn, yo, ye})
	}
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) {
		a.Errorf("%d effects, want %d", len(got), len(want))
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				a.Fatalf("effect %d is %s, want %s", i, got[i], want[i])
			}
		}
	}
}
