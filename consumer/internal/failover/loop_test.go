package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
)

// script is a [operate.Watch] whose answers a test gives. Its methods may wait.
type script struct {
	attend func() error
	look   func(ctx context.Context, self operate.Peer) (operate.Look, error)
	may    error // of Suspect

	mu       sync.Mutex
	attended []time.Time
	looks    int
	last     time.Time
	goodbyes int
	closed   int
}

func (w *script) Attend(context.Context, operate.Peer) (operate.Vigil, error) {
	w.mu.Lock()
	w.attended = append(w.attended, time.Now())
	w.mu.Unlock()
	if w.attend != nil {
		if err := w.attend(); err != nil {
			return nil, err
		}
	}
	return vigil{w}, nil
}

func (w *script) shows(look func(context.Context, operate.Peer) (operate.Look, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look = look
}

// soFar returns when connections were opened, the number of looks, and the time of the last one.
func (w *script) soFar() (attended []time.Time, looks int, last time.Time) {
	synctest.Wait()
	return w.now()
}

func (w *script) now() (attended []time.Time, looks int, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.attended), w.looks, w.last
}

type vigil struct{ *script }

func (v vigil) Look(ctx context.Context, self operate.Peer) (operate.Look, error) {
	v.mu.Lock()
	v.looks, v.last = v.looks+1, time.Now()
	look := v.look
	v.mu.Unlock()
	if look == nil {
		return operate.Look{}, nil
	}
	return look(ctx, self)
}

func (v vigil) Suspect(context.Context, operate.Peer, operate.Peer) (bool, error) {
	return v.may == nil, v.may
}

func (v vigil) Close(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed++
	if ctx.Err() == nil {
		v.goodbyes++
	}
}

var errMayNot = errors.New("no permission")

// looping runs a loop until test has returned.
func looping(t *testing.T, w *script, remove func(ctx context.Context, member string) error, test func(log *bytes.Buffer), before ...operate.Watch) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		log := &bytes.Buffer{}
		stop := start(t, log, remove, append(before, w)...)
		test(log)
		stop()
	})
}

// start starts a loop, and returns a function that ends it.
func start(t *testing.T, log *bytes.Buffer, remove func(ctx context.Context, member string) error, watches ...operate.Watch) func() {
	t.Helper()
	return startWith(t, log, func() {}, remove, watches...)
}

func startWith(t *testing.T, log *bytes.Buffer, hasten func(), remove func(ctx context.Context, member string) error, watches ...operate.Watch) func() {
	t.Helper()
	l := &Loop{
		Watches: watches, Self: operate.Peer{Run: "a", Name: "a", Host: "ada"}, MayNot: errMayNot,
		Member:    func() (string, time.Duration, bool) { return "m0", time.Minute, false },
		Remove:    func(ctx context.Context, member, _ string) error { return remove(ctx, member) },
		Hasten:    hasten,
		Suspected: func(Suspicion) {}, Wrong: func(Wrong) {},
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { l.Run(ctx); close(done) }()
	return func() { stop(); <-done }
}

// dying shows peers of which one more dies every five seconds.
func dying() func(context.Context, operate.Peer) (operate.Look, error) {
	began := time.Now()
	return func(context.Context, operate.Peer) (l operate.Look, _ error) {
		l.Members = 100
		for i := range int(time.Since(began) / (5 * time.Second)) {
			l.Peers = append(l.Peers, operate.Peer{Run: fmt.Sprint("r", i), Member: fmt.Sprint("m", i+1), Patience: time.Second, Silent: time.Since(began)})
		}
		return l, nil
	}
}

func TestABrokerThatHangsDelaysNoSign(t *testing.T) {
	w := &script{}
	var removing atomic.Int64
	looping(t, w, func(ctx context.Context, _ string) error {
		removing.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}, func(log *bytes.Buffer) {
		w.shows(dying())
		<-time.After(30 * time.Second)
		attended, looks, _ := w.soFar()
		if removing.Load() < 4 || looks < 140 || len(attended) != 1 {
			t.Errorf("%d removals, %d looks through %d connections in 30 s", removing.Load(), looks, len(attended))
		}
		if n := strings.Count(log.String(), "could not remove a member"); n < 3 {
			t.Errorf("%d warnings:\n%s", n, log)
		}
	})
	if w.goodbyes != 1 || w.closed != 1 {
		t.Errorf("%d goodbyes of %d", w.goodbyes, w.closed)
	}
}

func TestARefusalIsLoggedOnceAndTheSignsGoOn(t *testing.T) {
	w := &script{}
	var removing atomic.Int64
	looping(t, w, func(context.Context, string) error { removing.Add(1); return errMayNot }, func(log *bytes.Buffer) {
		w.shows(dying())
		<-time.After(time.Minute)
		if _, looks, _ := w.soFar(); removing.Load() != 1 || strings.Count(log.String(), "may not remove") != 1 || looks < 290 {
			t.Errorf("%d tries, %d looks:\n%s", removing.Load(), looks, log)
		}
	})
}

// A role may lack one of the functions. Its process is seen by others as before.
func TestWhoMayNotSuspectSaysSoOnceAndTheSignsGoOn(t *testing.T) {
	w := &script{may: fmt.Errorf("function suspect_peer: %w", operate.ErrNoWatch)}
	looping(t, w, nil, func(log *bytes.Buffer) {
		w.shows(dying())
		<-time.After(time.Minute)
		attended, looks, _ := w.soFar()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "may not suspect") || len(attended) != 1 || looks < 290 {
			t.Errorf("%d warnings, %d looks through %d connections:\n%s", n, looks, len(attended), log)
		}
	})
}

// Such as an AfterConnect of the user's pool that waits for a lock.
func TestAHookThatIgnoresItsContextHangsNeitherTheLoopNorItsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hook := make(chan struct{})
		w, log := &script{attend: func() error { <-hook; return nil }}, &bytes.Buffer{}
		stop := start(t, log, nil, w)
		<-time.After(time.Minute)
		if attended, _, _ := w.soFar(); len(attended) != 1 || strings.Count(log.String(), "do not see this one") != 1 {
			t.Errorf("%d attempts hang:\n%s", len(attended), log)
		}
		close(hook)
		<-time.After(2 * attendMax)
		if attended, looks, _ := w.soFar(); len(attended) != 1 || looks == 0 || !strings.Contains(log.String(), "see this one again") {
			t.Errorf("then %d looks after %d attempts:\n%s", looks, len(attended), log)
		}
		stop()

		hook = make(chan struct{})
		w = &script{attend: func() error { <-hook; return nil }}
		stop = start(t, log, nil, w)
		<-time.After(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("the end took %v", took)
		}
		close(hook)
		synctest.Wait()
		if w.closed != 1 || w.goodbyes != 0 {
			t.Errorf("closed %d times, with %d goodbyes", w.closed, w.goodbyes)
		}
	})
}

func TestARemovalThatFailsIsTriedAgain(t *testing.T) {
	w := &script{}
	var removing atomic.Int64
	looping(t, w, func(context.Context, string) error {
		if removing.Add(1) < 3 {
			return errors.New("no coordinator")
		}
		return nil
	}, func(log *bytes.Buffer) {
		w.shows(dying())
		<-time.After(9 * time.Second)
		synctest.Wait()
		if removing.Load() != 3 || strings.Contains(log.String(), "could not") {
			t.Errorf("%d tries:\n%s", removing.Load(), log)
		}
	})
}

// Its source may hear of it by its next heartbeat alone, seconds later.
func TestAProcessThatWasSuspectedTellsItsSourceOnce(t *testing.T) {
	w, told := &script{}, 0
	bubble.Test(t, func(t *testing.T) {
		stop := startWith(t, &bytes.Buffer{}, func() { told++ }, nil, w)
		<-time.After(time.Second)
		w.shows(func(_ context.Context, self operate.Peer) (operate.Look, error) {
			self.Suspected, self.By = "m-before", "b"
			return operate.Look{Peers: []operate.Peer{self}, Members: 3}, nil
		})
		<-time.After(time.Minute)
		stop()
	})
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

func TestALostConnectionIsReplacedAtOnceAndAnUnavailableOneWithPauses(t *testing.T) {
	w, lost := &script{}, errors.New("connection reset")
	looping(t, w, nil, func(*bytes.Buffer) {
		<-time.After(10 * time.Second)
		_, _, before := w.soFar()
		w.shows(func(context.Context, operate.Peer) (operate.Look, error) { return operate.Look{}, lost })
		<-time.After(lookEvery)
		if attended, _, _ := w.soFar(); len(attended) < 2 || attended[1].Sub(before) > lookEvery {
			t.Errorf("lost after %v, attended at %v", before, attended)
		}
		<-time.After(time.Minute)
		if attended, _, _ := w.soFar(); len(attended) < 60 || len(attended) > 120 {
			t.Errorf("%d connections in a minute, want one a second or so", len(attended))
		}
	})
	if w.goodbyes > 1 {
		t.Errorf("%d goodbyes of a process that lives", w.goodbyes)
	}

	w = &script{attend: func() error { return fmt.Errorf("no table: %w", operate.ErrNoWatch) }}
	looping(t, w, nil, func(log *bytes.Buffer) {
		<-time.After(10*time.Minute + time.Second)
		if attended, _, _ := w.soFar(); len(attended) != 11 || strings.Count(log.String(), "level=WARN") != 0 {
			t.Errorf("%d tries:\n%s", len(attended), log)
		}
		if n := strings.Count(log.String(), "do not see each other"); n != 1 {
			t.Errorf("%d lines about it:\n%s", n, log)
		}
	})
}

// A sink may have a watch only in some of its shards, or none in an older schema.
func TestWhereTheSinkHasNoWatchTheSourceIsAsked(t *testing.T) {
	none, w := &script{attend: func() error { return operate.ErrNoWatch }}, &script{}
	looping(t, w, nil, func(log *bytes.Buffer) {
		<-time.After(10 * time.Second)
		attended, looks, _ := w.soFar()
		if tried, _, _ := none.soFar(); len(tried) != 1 || len(attended) != 1 || looks < 49 || strings.Contains(log.String(), "do not see each other") {
			t.Errorf("the first was tried %d times, the second %d, with %d looks:\n%s", len(tried), len(attended), looks, log)
		}
	}, none)
}

func TestAHangingLookIsGivenUpBeforeOthersSuspectUs(t *testing.T) {
	w := &script{}
	w.look = func(ctx context.Context, _ operate.Peer) (operate.Look, error) {
		if _, looks, _ := w.now(); looks == 20 {
			<-ctx.Done() // the network has lost this connection
			return operate.Look{}, ctx.Err()
		}
		return operate.Look{}, nil
	}
	looping(t, w, nil, func(*bytes.Buffer) {
		<-time.After(10 * time.Second)
		attended, _, _ := w.soFar()
		if len(attended) != 2 {
			t.Fatalf("%d connections", len(attended))
		}
		if took := attended[1].Sub(attended[0].Add(19 * lookEvery)); took > lookTimeout || took+500*time.Millisecond+lookEvery > DefaultPatience {
			t.Errorf("the next one came after %v", took)
		}
	})
}
