package pgsink_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Dead letters and times come back as they went, whatever is set for the role.
func TestSettingsOfTheRoleDoNotChangeWhatIsStoredAndRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.db.Odd(t)
	r.reader.Reset()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			s := r.openOn(newPool(t, r.appURL, mode))
			op := r.operatorAt(t, r.operatorsURL, mode)
			p := orders
			p.Group = name
			seed(t, s, p)
			f := claim(t, s, p, 5)
			begun := time.Now()
			for i, at := range []time.Time{{}, hostile.Time, time.UnixMicro(1700000000123456), time.UnixMilli(1700000000123456), time.UnixMilli(1700000000123456789), time.UnixMilli(-1 << 62)} {
				m := of(f, hostile)
				m.Time, m.Offset = at, f.Next
				var err error
				if i%2 == 0 {
					err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
						return s.DeadLetter(ctx, tx, m, f.Epoch, errHostile)
					})
				} else {
					err = s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
						return s.Queued().DeadLetter(ctx, q, m, f.Epoch, errHostile)
					})
				}
				must(t, err)
				f.Next++
				ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{Filter: operate.Filter{Group: p.Group}})
				must(t, err)
				l := ls[len(ls)-1]
				if !l.Message.Time.Equal(at) || l.At.Before(begun.Add(-time.Minute)) {
					t.Errorf("listed: %+v, want the time %v", l, at)
				}
				l, err = op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"})
				must(t, err)
				shown, err := op.DeadLetter(t.Context(), l.ID)
				must(t, err)
				asked, err := operate.RecordsIn[pgsink.Tx](s).Requests(t.Context(), []epoch.Partition{p})
				must(t, err)
				for _, got := range []epoch.Message{l.Message, shown.Message, asked.Replays[len(asked.Replays)-1].Message} {
					if !got.Time.Equal(at) || describe(got) != describe(m) {
						t.Errorf("%s\n%s, at %v; want\n%s, at %v", name, describe(got), got.Time, describe(m), at)
					}
				}
			}
			must(t, operate.RecordsIn[pgsink.Tx](s).Alive(t.Context(), operate.Process{Run: name, Group: p.Group, Name: "a", Every: time.Second}))
			now, err := op.Partition(t.Context(), p)
			must(t, err)
			lives, err := op.Processes(t.Context(), p.Group)
			must(t, err)
			log, err := op.History(t.Context(), operate.HistoryQuery{Partition: &p, Until: time.Now().Add(time.Minute)})
			must(t, err)
			if len(lives) != 1 || len(log) == 0 {
				t.Fatalf("%d processes and %d entries of the audit log", len(lives), len(log))
			}
			for what, at := range map[string]time.Time{
				"the claim": now.ClaimedAt, "the advance": now.AdvancedAt, "now": now.Now, "a sign of life": lives[0].Seen, "the audit log": log[0].At,
			} {
				if at.Sub(begun).Abs() > time.Minute {
					t.Errorf("%s is of %v, and it is %v", what, at, begun)
				}
			}
		})
	}
}

// describe returns what m consists of, apart from its time, with nil and empty told apart.
func describe(m epoch.Message) string {
	m.Time = time.Time{}
	return fmt.Sprintf("%#v", []any{m.Partition, m.Offset, m.Key, m.Value, m.Headers})
}
