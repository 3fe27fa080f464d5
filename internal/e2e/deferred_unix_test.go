//go:build unix

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestADeferredMessageIsReplayedOnceWhateverBecomesOfItsOwner: real processes share four partitions. An owner is killed, or
// frozen until others have taken over, between the time when messages are due and their replay, and later another one in
// the middle of a replay. An operator withdraws a message in between. What is due an hour later, as everything is by a
// clock that was set back, waits.
func TestADeferredMessageIsReplayedOnceWhateverBecomesOfItsOwner(t *testing.T) {
	t.Parallel()
	for store, open := range map[string]func(*testing.T, *ledger) deferrals{"SQLite": deferralsInSQLite, "PostgreSQL": deferralsInPostgreSQL} {
		for name, how := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
			t.Run(store+", "+name, func(t *testing.T) {
				t.Parallel()
				led := newLedger(t, newCluster(t, kfake.GroupMinSessionTimeout(time.Second)).ListenAddrs()[0], 4)
				d := open(t, led)
				d.play(how)
			})
		}
	}
}

// deferrals is a database with what is deferred.
type deferrals struct {
	*ledger
	spec     processSpec
	operator operate.Operator
	due      func(like string)              // makes messages due
	effects  func() map[string]int          // how often each message was applied
	locked   func(ctx context.Context) bool // a frozen process blocks the others until it continues
}

func deferralsInSQLite(t *testing.T, led *ledger) deferrals {
	exec := func(ctx context.Context, query string, args ...any) error {
		_, err := led.db.ExecContext(ctx, query, args...)
		return err
	}
	return deferrals{
		ledger: led, operator: operate.On(led.sink),
		due: func(like string) {
			const query = `UPDATE epochfence_ledger SET due_at = '2026-01-01T00:00:00.000Z' WHERE due_at IS NOT NULL AND CAST(message_value AS TEXT) LIKE ?`
			if err := exec(t.Context(), query, like); err != nil {
				t.Fatal(err)
			}
		},
		effects: func() map[string]int {
			rows, err := led.db.QueryContext(t.Context(), `SELECT value FROM effects`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			times := map[string]int{}
			for rows.Next() {
				var value string
				if err := rows.Scan(&value); err != nil {
					t.Fatal(err)
				}
				times[value]++
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return times
		},
		locked: func(ctx context.Context) bool { return exec(ctx, `DELETE FROM effects WHERE FALSE`) != nil },
	}
}

func deferralsInPostgreSQL(t *testing.T, led *ledger) deferrals {
	db := pgtest.Start(t)
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	exec("create table effects (number int, key text, value text, epoch bigint, worker text)")
	operator, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return deferrals{
		ledger: led, spec: processSpec{PostgreSQL: db.URL}, operator: operator,
		due: func(like string) {
			exec(`update epochfence.fence_deferred d set due_at = clock_timestamp() - interval '1 second' from epochfence.fence_ledger l
				where l.id = d.id and convert_from(l.message_value, 'UTF8') like $1`, like)
		},
		effects: func() map[string]int {
			rows, err := pool.Query(t.Context(), "select value from effects")
			if err != nil {
				t.Fatal(err)
			}
			times, value := map[string]int{}, ""
			for rows.Next() {
				if err := rows.Scan(&value); err != nil {
					t.Fatal(err)
				}
				times[value]++
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return times
		},
		locked: func(context.Context) bool { return false },
	}
}

func (d deferrals) play(how syscall.Signal) {
	start := func(name string, stops bool) *process {
		spec := d.spec
		spec.Name, spec.Stops = name, stops
		return d.start(spec)
	}
	victim, other := start("victim", false), start("other", false)
	d.until("both to own partitions", func() bool { return len(d.of(victim)) > 0 && len(d.of(other)) > 0 })
	for p := range int32(4) {
		for _, what := range []string{"a", later + "soon", "b", later + "withdrawn", "c", later + "clock", later + "last"} {
			d.send(p, fmt.Sprintf("%s %d", what, p))
		}
	}
	d.until("all positions to be behind what is deferred", func() bool { return d.next(7) })
	d.until("both to own partitions", func() bool { return len(d.of(victim)) > 0 && len(d.of(other)) > 0 })
	d.want(map[string]int{"a": 1, "b": 1, "c": 1}, 16, nil)

	theirs := d.of(victim)
	d.halt(victim, how)
	d.halt(other, syscall.SIGSTOP) // nobody replays what is due before the operator has acted
	d.due(later + "soon %")
	for _, p := range theirs {
		d.due(fmt.Sprintf(later+"withdrawn %d", p))
	}
	withdrawn := d.withdraw(theirs)
	other.signal(syscall.SIGCONT)
	applied := func(what string) func() bool {
		return func() bool {
			times := d.effects()
			return !slices.Contains([]int{times[what+" 0"], times[what+" 1"], times[what+" 2"], times[what+" 3"]}, 0)
		}
	}
	d.until("what is due to be replayed", applied(later+"soon"))
	if how == syscall.SIGSTOP {
		victim.signal(syscall.SIGCONT)
		d.until("it to own partitions again", func() bool { return len(d.of(victim)) > 0 })
	}

	stopped := start("stopped", true)
	d.until("it to own partitions", func() bool { return len(d.of(stopped)) > 0 })
	d.want(map[string]int{"a": 1, "b": 1, "c": 1, later + "soon": 1}, 12-len(withdrawn), withdrawn)
	due := map[int32]bool{}
	d.until("it to be in a replay", func() bool { // of a partition that it has not lost meanwhile
		for _, p := range d.of(stopped) {
			if !due[p] {
				due[p] = true
				d.due(fmt.Sprintf(later+"clock %d", p))
			}
		}
		return strings.Contains(fmt.Sprint(stopped.all()), "replays")
	})
	d.halt(stopped, how)
	for p := range int32(4) {
		if !due[p] { // the row of a replay is locked
			d.due(fmt.Sprintf(later+"clock %d", p))
		}
	}
	d.until("what is due to be replayed by others", applied(later+"clock"))
	if how == syscall.SIGSTOP {
		stopped.signal(syscall.SIGCONT)
		stopped.goOn()
	}
	for p := range int32(4) {
		d.send(p, fmt.Sprintf("d %d", p))
	}
	d.until("the last messages to be applied", applied("d"))
	d.due(later + "last %")
	d.due(later + "withdrawn %")
	d.until("everything to be replayed", func() bool { return len(d.letters(true)) == 0 })
	other.end()
	if how == syscall.SIGSTOP {
		victim.end()
		stopped.end()
	}
	want := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, later + "soon": 1, later + "clock": 1, later + "last": 1, later + "withdrawn": 1}
	d.want(want, 0, withdrawn)
}

// halt kills a process, or freezes it where it does not hold SQLite's write lock.
func (d deferrals) halt(p *process, how syscall.Signal) {
	d.Helper()
	if how != syscall.SIGSTOP {
		p.signal(how)
		return
	}
	d.until(p.name+" to be frozen without the lock", func() bool { // which it may give back between two attempts
		if err := subprocess.Freeze(p.cmd.Process); err != nil {
			d.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(d.Context(), time.Second)
		defer cancel()
		if d.locked(ctx) {
			p.signal(syscall.SIGCONT)
			return false
		}
		return true
	})
}

// withdraw withdraws what is to be withdrawn of some partitions.
func (d deferrals) withdraw(of []int32) (done []string) {
	d.Helper()
	for _, l := range d.letters(true) {
		l, err := d.operator.DeadLetter(d.Context(), l.ID)
		if err != nil {
			d.Fatal(err)
		}
		if p := l.Message.Partition.Number; slices.Contains(of, p) && string(l.Message.Value) == fmt.Sprintf(later+"withdrawn %d", p) {
			if _, err := d.operator.DoDeadLetter(d.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: l, By: "anna", Reason: "the account is closed"}); err != nil {
				d.Fatal(err)
			}
			done = append(done, string(l.Message.Value))
		}
	}
	if len(done) == 0 {
		d.Fatal("nothing is withdrawn")
	}
	return done
}

func (d deferrals) letters(deferred bool) []operate.DeadLetter {
	d.Helper()
	ls, err := d.operator.DeadLetters(d.Context(), operate.DeadLetterQuery{Deferred: deferred})
	if err != nil {
		d.Fatal(err)
	}
	return ls
}

func (d deferrals) fences() []operate.Partition {
	d.Helper()
	ps, err := d.operator.Partitions(d.Context(), operate.Filter{})
	if err != nil {
		d.Fatal(err)
	}
	return ps
}

// of returns the partitions whose fences have a claim of p.
func (d deferrals) of(p *process) (owned []int32) {
	d.Helper()
	for _, f := range d.fences() {
		if strings.HasPrefix(f.Fence.Owner, p.name+"@") {
			owned = append(owned, f.Fence.Partition.Number)
		}
	}
	return owned
}

// next reports whether all fences are at an offset.
func (d deferrals) next(at int64) bool {
	d.Helper()
	ps := d.fences()
	return len(ps) == 4 && !slices.ContainsFunc(ps, func(p operate.Partition) bool { return int64(p.Fence.Next) < at })
}

// want checks how often the messages of each partition were applied, what is deferred, and that the dead letters are those
// that were withdrawn.
func (d deferrals) want(each map[string]int, deferred int, withdrawn []string) {
	d.Helper()
	want := map[string]int{}
	for p := range 4 {
		for what, n := range each {
			want[fmt.Sprintf("%s %d", what, p)] = n
		}
	}
	for _, value := range withdrawn {
		delete(want, value)
	}
	if got := d.effects(); !maps.Equal(got, want) {
		d.Errorf("applied are\n%v\nwant\n%v", got, want)
	}
	if ls := d.letters(true); len(ls) != deferred {
		d.Errorf("%d are deferred, want %d", len(ls), deferred)
	}
	if ls := d.letters(false); len(ls) != len(withdrawn) {
		d.Errorf("%d dead letters, want %d that were withdrawn: %+v", len(ls), len(withdrawn), ls)
	}
}
