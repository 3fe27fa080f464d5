package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file looks and signs, on one goroutine and through a connection of its own, so that no handler delays a
// sign. What is to be removed is removed beside it, so that no broker does.

const (
	lookEvery = 200 * time.Millisecond

	// lookTimeout ends a look through a connection that the network has lost, early enough for a sign through a
	// new one before the default patience has passed.
	lookTimeout = 750 * time.Millisecond

	attendTimeout = 5 * time.Second

	// attendMin and attendMax limit the waits between attempts to connect. All who have lost the database are back
	// before anybody suspects, a patience later.
	attendMin, attendMax = 50 * time.Millisecond, time.Second

	// stable is how long a connection has to have lasted for the next one to be opened at once.
	stable = time.Second

	// failedAttends in a row cause a warning.
	failedAttends = 5

	// unwatched is the wait for a watch that there is not, such as a table that a later release needs.
	unwatched = time.Minute

	removeTimeout = 10 * time.Second
	goodbye       = time.Second
)

// Loop is one process's part in failover.
type Loop struct {
	Watches  []operate.Watch // the first one that there is
	Self     operate.Peer    // without Member and Patience
	Patience time.Duration

	// Member and Remove are those of a consumer.Remover, and MayNot is the error of one that lacks the permission.
	Member func() (id string, session time.Duration, static bool)
	Remove func(ctx context.Context, member, reason string) error
	MayNot error

	// Hasten is called when others have suspected this process: it is no member any more, or will not be.
	Hasten func()

	// Suspected is called for each suspicion of this process, and Wrong for each that was wrong.
	Suspected func(Suspicion)
	Wrong     func(Wrong)

	Log *slog.Logger

	off      atomic.Bool // this process may not suspect, or not remove
	removals sync.WaitGroup
	at       int                                // in Watches
	opening  chan func() (operate.Vigil, error) // the result of an Attend that is under way; nil without one
}

// Run looks until ctx ends, and then says goodbye: end ctx when this process has left its group.
func (l *Loop) Run(ctx context.Context) {
	defer l.removals.Wait()
	s := NewState(l.Self, l.Patience)
	retry := waits.New(attendMin, attendMax)
	failed, told := 0, false
	for {
		lasted, err := l.attend(ctx, s, func() {
			if failed >= failedAttends {
				l.Log.Info("the processes of the group see this one again", "failed", failed)
			}
			failed = 0
		})
		if ctx.Err() != nil {
			return
		}
		pause := time.Duration(0)
		switch {
		case errors.Is(err, operate.ErrNoWatch):
			if l.at = (l.at + 1) % len(l.Watches); l.at > 0 {
				l.Log.Debug("trying the next place where the processes of the group may see each other", "err", err)
				break
			}
			level := slog.LevelDebug
			if !told {
				level, told = slog.LevelInfo, true
			}
			l.Log.Log(ctx, level, "the processes of the group do not see each other: partitions of one that dies wait for its session timeout", "err", err)
			pause = unwatched
		case lasted >= stable:
			retry.Reset()
			l.Log.Debug("lost the connection by which the processes of the group see each other, opening another", "err", err)
		default:
			pause = retry.Next()
			if failed++; failed == failedAttends {
				l.Log.Warn("the processes of the group do not see this one: if it dies, its partitions wait for its session timeout", "err", err)
			}
		}
		if pause > 0 && !waits.Sleep(ctx, pause) {
			return
		}
	}
}

// attend opens a connection and looks through it until ctx ends or the connection fails. It returns how long
// the connection has lasted.
func (l *Loop) attend(ctx context.Context, s *State, seen func()) (lasted time.Duration, err error) {
	v, err := l.open(ctx, s)
	if err != nil {
		return 0, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		if err != nil && ctx.Err() == nil {
			cancel() // no goodbye: this process lives
		}
		v.Close(closing)
	}()
	s.Attended()
	began := time.Now()
	for {
		sent := time.Now()
		if err := l.look(ctx, v, s, sent); err != nil {
			return time.Since(began), err
		}
		seen()
		if !waits.Sleep(ctx, lookEvery-time.Since(sent)) {
			return time.Since(began), nil
		}
	}
}

// open attends the watch. A hook of the user may ignore the context: then open gives up, and the next call waits for
// the same attempt, so that no second one hangs beside it.
func (l *Loop) open(run context.Context, s *State) (operate.Vigil, error) {
	ctx, cancel := context.WithTimeout(run, attendTimeout)
	defer cancel()
	if l.opening == nil {
		w, self, made := l.Watches[l.at], s.Sign(l.Member()), make(chan func() (operate.Vigil, error))
		l.opening = made
		go func() {
			v, err := w.Attend(ctx, self)
			select {
			case made <- func() (operate.Vigil, error) { return v, err }:
			case <-run.Done():
				if err == nil {
					v.Close(run)
				}
			}
		}()
	}
	select {
	case result := <-l.opening:
		l.opening = nil
		return result()
	case <-ctx.Done():
		return nil, fmt.Errorf("attend the watch: %w", ctx.Err())
	}
}

// look looks once, and does what follows.
func (l *Loop) look(run context.Context, v operate.Vigil, s *State, sent time.Time) error {
	// A look is answered even if run ends meanwhile, so that the connection is there for the goodbye.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), lookTimeout)
	defer cancel()
	self := s.Sign(l.Member())
	seen, err := v.Look(ctx, self)
	if err != nil {
		return fmt.Errorf("look at the group: %w", err)
	}
	step := s.See(sent, time.Now(), seen)
	if step.Self > 0 {
		l.Log.Warn("the group had removed this process, which gave no sign of life for too long; the others wait longer from now on", "patience", step.Self)
		l.Hasten()
	}
	for _, w := range step.Wrong {
		l.Log.Warn("a process that this one had suspected lives", "name", w.Name, "host", w.Host, "member", w.Member, "why", w.Why,
			"slept", w.Slept.Round(time.Millisecond), "patience", w.Patience)
		l.Wrong(w)
	}
	if l.off.Load() {
		return nil
	}
	for _, p := range step.Remove {
		l.Log.Info("another process suspects one of the group", "name", p.Name, "host", p.Host, "member", p.Member, "by", p.By)
		l.remove(run, p, fmt.Sprintf("suspected by %s", p.By))
	}
	if step.Suspect == nil {
		return nil
	}
	suspected := *step.Suspect
	agreed, err := v.Suspect(ctx, self, suspected.Peer)
	if errors.Is(err, operate.ErrNoWatch) {
		l.mayNot("suspect", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("suspect %s: %w", suspected.Name, err)
	}
	if agreed {
		s.Accepted(time.Now(), suspected)
		l.Log.Warn("a process seems to have died: removing it from the group", "name", suspected.Name, "host", suspected.Host, "member", suspected.Member,
			"why", suspected.Why, "silent", suspected.Silent.Round(time.Millisecond))
		l.Suspected(suspected)
		l.remove(run, suspected.Peer, fmt.Sprintf("suspected by %s: %s for %v", self.Name, suspected.Why, suspected.Silent.Round(time.Millisecond)))
	}
	return nil
}

// remove removes p beside the loop. A session timeout remains underneath, so it gives up after a while.
func (l *Loop) remove(ctx context.Context, p operate.Peer, reason string) {
	l.removals.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		retry := waits.New(attendMin, attendMax)
		for {
			err := l.Remove(ctx, p.Member, reason)
			switch {
			case err == nil:
				return
			case errors.Is(err, l.MayNot):
				l.mayNot("remove", err)
				return
			case !waits.Sleep(ctx, retry.Next()):
				if !errors.Is(context.Cause(ctx), context.Canceled) {
					l.Log.Warn("could not remove a member from the group, which will do so after its session timeout", "member", p.Member, "err", err)
				}
				return
			}
		}
	})
}

// mayNot ends this process's part in removals, with one line. It still signs, so that others notice its death.
func (l *Loop) mayNot(what string, err error) {
	if !l.off.Swap(true) {
		l.Log.Warn("this process may not "+what+" others of the group: partitions of one that dies wait for another process, or for its session timeout", "err", err)
	}
}
