package operate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const night = 1_798_770_600_000_000 // 2027-01-01T02:30:00Z

func to(t *testing.T, s string) *operate.Target {
	at, err := operate.ParseTarget(s, func(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) })
	if err != nil {
		t.Fatal(err)
	}
	return &at
}

func TestATargetIsParsed(t *testing.T) {
	at := time.Date(2027, 1, 1, 2, 30, 0, 0, time.UTC)
	for s, want := range map[string]operate.Target{
		"start": {Word: "start"}, "end": {Word: "end"}, "17": {Offset: 17}, "0": {}, "+5": {Offset: 5, Relative: true},
		"-5": {Offset: -5, Relative: true}, "@2027-01-01T02:30:00Z": {At: at},
	} {
		if got := to(t, s); *got != want {
			t.Errorf("%s: %+v", s, got)
		}
	}
	for _, s := range []string{"", "many", "99999999999999999999", "1.5"} {
		if _, err := operate.ParseTarget(s, nil); !errors.Is(err, operate.ErrAct) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestAPlanSaysWhatItDoesOrWhyItMakesNoSense(t *testing.T) {
	f := epoch.Fence{Origin: epoch.Origin{Partition: orders, Log: "log", Source: "source"}, Epoch: 3, Claim: epoch.NewClaimID(), Owner: "a", Next: 10}
	paused, fresh, job, atWork, requested := f, f, f, f, f
	paused.Pause = epoch.PauseState{Mode: epoch.Paused, By: "anna", Reason: "moving", Since: time.Unix(0, 0)}
	fresh.Epoch, fresh.Claim, fresh.Next = 0, epoch.ClaimID{}, 0
	job.Log, job.Next = operate.JobLog, night
	atWork.Log, atWork.Next = operate.JobLog, night+3
	requested.Log, requested.Next, requested.Mark = operate.JobLog, night, operate.RunRequested
	knows := operate.Planner{
		Extent: func(context.Context, epoch.Fence) (operate.Extent, error) {
			return operate.Extent{Log: "log", Source: "source", Begin: 4, End: 20}, nil
		},
		At: func(context.Context, epoch.Fence, time.Time) (epoch.Offset, error) { return 8, nil },
	}
	recreated := operate.Planner{Extent: func(context.Context, epoch.Fence) (operate.Extent, error) {
		return operate.Extent{Log: "another", Source: "source", Begin: 0, End: 5}, nil
	}}
	nameless := operate.Planner{Extent: func(context.Context, epoch.Fence) (operate.Extent, error) {
		return operate.Extent{Begin: 4, End: 20}, nil
	}}
	var blind operate.Planner
	const rewind, skip, rebase, run = operate.ActRewind, operate.ActSkip, operate.ActRebase, operate.ActRun
	for _, c := range []struct {
		planner           operate.Planner
		fence             epoch.Fence
		kind              operate.ActKind
		to, log, source   string
		next              epoch.Offset // -1: it stays
		effect, no, wrong string
	}{
		{knows, f, operate.ActPause, "", "", "", -1, "takes no claim until it is resumed", "", ""},
		{knows, paused, operate.ActPause, "", "", "", -1, "takes no claim until it is resumed", "paused since 1970-01-01T00:00:00Z, by anna: moving", ""},
		{knows, fresh, operate.ActPause, "", "", "", -1, "takes no claim until it is resumed", "it was never claimed; start a consumer, or set its position", ""},
		{knows, paused, operate.ActResume, "", "", "", -1, "takes claims again; it continues at offset 10", "", ""},
		{knows, f, operate.ActResume, "", "", "", -1, "takes claims again; it continues at offset 10", "it is not paused", ""},
		{knows, f, operate.ActEvict, "", "", "", -1, "the claim of a ends", "", ""},
		{knows, f, operate.ActEvict, "4", "", "", 0, "", "", "evict sets no position"},

		{knows, f, rewind, "", "", "", 0, "", "", "say where to"},
		{knows, f, rewind, "9", "", "", 9, "offset 9 is applied again", "", ""},
		{knows, f, rewind, "-3", "", "", 7, "offsets 7 to 9 are applied again", "", ""},
		{knows, f, rewind, "start", "", "", 4, "offsets 4 to 9 are applied again", "", ""},
		{knows, f, rewind, "end", "", "", 20, "offsets 10 to 19 are never applied", "", ""},
		{knows, f, rewind, "@2027-01-01T00:00:00Z", "", "", 8, "offsets 8 to 9 are applied again", "", ""},
		{knows, f, rewind, "10", "", "", 10, "the position stays", "it is there", ""},
		{knows, fresh, rewind, "+4", "", "", 4, "offsets 0 to 3 are never applied", "", ""},
		{knows, f, rewind, "21", "", "", 0, "", "", "offset 21 is not in the log, which has [4, 20)"},
		{nameless, f, rewind, "3", "", "", 0, "", "", "offset 3 is not in the log"},
		{nameless, f, rewind, "@2027-01-01T00:00:00Z", "", "", 0, "", "", "say an offset"},
		{blind, f, rewind, "21", "", "", 21, "offsets 10 to 20 are never applied (not compared with the log)", "", ""},
		{blind, f, rewind, "-11", "", "", 0, "", "", "offset -1 is below 0"},
		{blind, f, rewind, "start", "", "", 0, "", "", "it is not known where the log begins and ends"},
		{knows, f, skip, "11", "", "", 11, "offset 10 is never applied", "", ""},

		{recreated, f, rebase, "", "", "", 0, "", "", "say where to continue in it"},
		{recreated, f, rebase, "start", "", "", 0, "log another is accepted; it continues at offset 0", "", ""},
		{recreated, f, rebase, "+1", "", "", 0, "", "", "the new log has other offsets"},
		{knows, f, rebase, "start", "", "", -1, "", "the log and the issuer of leases are those of the fence", ""},
		{knows, f, rebase, "", "", "elsewhere", -1, "lease issuer elsewhere is accepted", "", ""},
		{knows, f, rebase, "5", "", "elsewhere", 5, "lease issuer elsewhere is accepted; offsets 5 to 9 are applied again", "", ""},
		{nameless, f, rebase, "0", "another", "", 0, "log another is accepted; it continues at offset 0", "", ""},
		{nameless, f, rebase, "0", "", "", 0, "", "", "name the log or the lease issuer to accept"},

		{blind, job, run, "", "", "", night, "the owner of the job runs it once, beside its ticks", "", ""},
		{blind, requested, run, "", "", "", -1, "the owner of the job runs it once, beside its ticks", "a run was requested and has not begun", ""},
		{blind, f, run, "", "", "", 0, "", "", "it is no job"},
		{blind, job, rewind, "@2027-01-01T02:00:00Z", "", "", night - 1800*1e6, "continues with its ticks from 2027-01-01T02:00:00Z on; its CatchUp says which of them are run", "", ""},
		{blind, job, skip, "@2027-01-01T03:30:00Z", "", "", night + 3600*1e6, "the ticks before 2027-01-01T03:30:00Z are left out", "", ""},
		{blind, job, rewind, "start", "", "", 0, "", "", "a job has no beginning"},
	} {
		r := operate.Request{Kind: c.kind, Log: c.log, Source: c.source, By: "anna", Reason: "for the test"}
		if c.to != "" {
			r.To = to(t, c.to)
		}
		p, err := c.planner.Plan(t.Context(), c.fence, r)
		about := fmt.Sprintf("%s to %q, log %q, source %q, of %+v", c.kind, c.to, c.log, c.source, c.fence)
		if c.wrong != "" {
			if !errors.Is(err, operate.ErrAct) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v", about, err)
			}
			continue
		}
		next := epoch.Offset(-1)
		if p.Act.To != nil {
			next = p.Act.To.Offset
		}
		if err != nil || p.Effect != c.effect || p.Nothing != c.no || next != c.next {
			t.Errorf("%s: %+v, %v", about, p, err)
		}
		if c.no == "" {
			if _, err := p.Act.Apply(c.fence); err != nil {
				t.Errorf("%s: %v", about, err)
			}
		}
	}
	if _, err := recreated.Plan(t.Context(), f, operate.Request{Kind: rewind, To: to(t, "4")}); err == nil || !strings.Contains(err.Error(), "rebase") {
		t.Errorf("a rewind in another log: %v", err)
	}
	if _, err := blind.Plan(t.Context(), atWork, operate.Request{Kind: run}); !errors.Is(err, operate.ErrAtWork) {
		t.Errorf("a run between two steps: %v", err)
	}
}

func TestTheGroundsOfAPlanAreWhatTheOperatorDecidedOn(t *testing.T) {
	f := epoch.Fence{Origin: epoch.Origin{Partition: orders, Log: "log"}, Epoch: 3, Claim: epoch.NewClaimID(), Next: 10}
	grounds := func(f epoch.Fence, kind operate.ActKind, at string) string {
		p, err := operate.Planner{}.Plan(t.Context(), f, operate.Request{Kind: kind, To: to(t, at)})
		if err != nil {
			t.Fatal(err)
		}
		return p.Grounds()
	}
	on, passed, taken := f, f, f
	on.Next, passed.Next, taken.Claim = 12, 30, epoch.NewClaimID()
	for name, c := range map[string]struct {
		now  epoch.Fence
		kind operate.ActKind
		same bool
	}{
		"the owner works on":              {on, operate.ActRewind, true},
		"the owner has passed the target": {passed, operate.ActRewind, false},
		"another owner":                   {taken, operate.ActRewind, false},
		"the owner works on, and a skip":  {on, operate.ActSkip, false},
	} {
		if same := grounds(f, c.kind, "20") == grounds(c.now, c.kind, "20"); c.now.Next < 20 && same != c.same || c.now.Next > 20 && same {
			t.Errorf("%s: %t", name, same)
		}
	}
}

// busy is an operator beside an owner that commits before each act that sets a position, and claims again
// after each of the first evictions.
type busy struct {
	operate.Operator
	t       *testing.T
	sink    *memsink.Sink
	fence   epoch.Fence
	again   int // evictions after which it claims
	evicted int
}

func (b *busy) work() {
	as := []epoch.Advance{{Partition: orders, Claim: b.fence.Claim, From: b.fence.Next, To: b.fence.Next + 5}}
	if err := b.sink.Commit(b.t.Context(), as, epoch.TxOptions{}, func(context.Context, *memsink.Tx) error { return nil }); err == nil {
		b.fence.Next += 5
	}
}

func (b *busy) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	if a.Kind != operate.ActEvict {
		b.work()
	}
	f, err := b.Operator.Act(ctx, a)
	if err != nil || a.Kind != operate.ActEvict {
		return f, err
	}
	if b.evicted++; b.evicted <= b.again {
		b.fence, err = b.sink.Claim(ctx, f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: int64(1 + b.evicted), Owner: "a"}))
		if err != nil {
			b.t.Fatal(err)
		}
	}
	return f, nil
}

func atWork(t *testing.T) *busy {
	s := memsink.New()
	o := epoch.Origin{Partition: orders, Log: "log", Source: "source"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), s, orders)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	return &busy{Operator: s.Operator(), t: t, sink: s, fence: f}
}

func TestAPlanIsCarriedOutBesideAnOwnerThatWorks(t *testing.T) {
	for name, c := range map[string]struct {
		kind    operate.ActKind
		to      string
		again   int
		evicted int
		next    epoch.Offset
		err     error
	}{
		"a pause evicts nobody":                 {operate.ActPause, "", 0, 0, 5, nil},
		"forward":                               {operate.ActRewind, "1000", 0, 1, 1000, nil},
		"the owner claims again at once":        {operate.ActRewind, "1000", 3, 4, 1000, nil},
		"the owner claims again each time":      {operate.ActRewind, "1000", 99, 10, 55, operate.ErrChanged},
		"the owner passes the target":           {operate.ActRewind, "3", 0, 1, 5, operate.ErrChanged},
		"a skip is refused, and nobody evicted": {operate.ActSkip, "3", 0, 0, 5, epoch.ErrMoved},
		"the same of another log":               {operate.ActRebase, "3", 0, 1, 5, operate.ErrChanged},
	} {
		b := atWork(t)
		b.again = c.again
		r := operate.Request{Kind: c.kind, By: "anna", Reason: "for the test"}
		if c.to != "" {
			r.To = to(t, c.to)
		}
		if c.kind == operate.ActRebase {
			r.Log = "another"
		}
		p, err := operate.Planner{}.Plan(t.Context(), b.fence, r)
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.CarryOut(t.Context(), b)
		now := b.sink.Fences()[orders]
		if !errors.Is(err, c.err) || now.Next != c.next || b.evicted != c.evicted || err == nil && (f != now || f.Claim != p.Act.Claim) {
			t.Errorf("%s: %+v, %v; evicted %d times, now %+v", name, f, err, b.evicted, now)
		}
	}
}

func TestAPlanOnAnotherClaimOrWithNothingToDoIsRefused(t *testing.T) {
	b := atWork(t)
	p, err := operate.Planner{}.Plan(t.Context(), b.fence, operate.Request{Kind: operate.ActEvict, By: "anna", Reason: "for the test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.CarryOut(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := p.CarryOut(t.Context(), b); !errors.Is(err, epoch.ErrStale) {
		t.Errorf("a second time: %v", err)
	}
	p.Nothing = "it is there"
	if _, err := p.CarryOut(t.Context(), b); !errors.Is(err, operate.ErrNothingToDo) {
		t.Errorf("nothing to do: %v", err)
	}
}

// lossy loses the answers of acts, which may be done all the same.
type lossy struct {
	operate.Operator
	done bool
}

func (l lossy) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	if l.done {
		if _, err := l.Operator.Act(ctx, a); err != nil {
			return epoch.Fence{}, err
		}
	}
	return epoch.Fence{}, fmt.Errorf("the connection broke: %w", epoch.ErrInDoubt)
}

func TestALostAnswerIsLookedForInTheAuditLog(t *testing.T) {
	for _, done := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			b := atWork(t)
			p, err := operate.Planner{}.Plan(t.Context(), b.fence, operate.Request{Kind: operate.ActEvict, By: "anna", Reason: "for the test"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if !done {
				cancel()
			}
			defer cancel()
			began := time.Now()
			f, err := p.CarryOut(ctx, lossy{b.Operator, done})
			var doubt *operate.DoubtError
			switch {
			case done && (err != nil || f != b.sink.Fences()[orders]):
				t.Errorf("done: %+v, %v", f, err)
			case !done && (!errors.Is(err, epoch.ErrInDoubt) || !errors.As(err, &doubt) || doubt.Act.Claim != p.Act.Claim || time.Since(began) != 15*time.Second):
				t.Errorf("lost: %v after %v", err, time.Since(began))
			}
		})
	}
}
