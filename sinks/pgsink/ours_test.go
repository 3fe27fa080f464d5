package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault plays every way to them, in every mode
// of pgx. A constraint that nobody expects stands for whatever a table of ours may refuse.
func TestWhatTheTablesOfEpochfenceRefuseIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			entries, err := pgoutbox.Open[pgoutbox.DBTX](t.Context(), r.admin, pgoutbox.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := r.openOn(r.pool(mode))
			seed(t, s, orders)
			f := claim(t, s, orders, 5)
			if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile)
			}); err != nil {
				t.Fatal(err)
			}
			f.Next++
			op := r.operator(t)
			_, err = op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: r.letters(op)[0], By: "anna", Reason: "again"})
			if err != nil {
				t.Fatal(err)
			}
			asked, err := operate.RecordsIn[pgsink.Tx](s).Requests(t.Context(), []epoch.Partition{orders})
			if err != nil || len(asked.Replays) != 1 {
				t.Fatalf("%+v, %v", asked, err)
			}
			replay := asked.Replays[0]
			r.sql(`alter table epochfence.fence_ledger add check (kind = 'process') not valid;
				alter table epochfence.outbox_entry add check (id < 0) not valid`)

			add := func(ctx context.Context, tx pgoutbox.DBTX) error {
				return entries.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, outbox.Entry{Scope: "s", IdempotencyKey: "k", Method: "POST", URL: "http://host/"})
			}
			dead := func(ctx context.Context, tx pgsink.Tx) error {
				return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile)
			}
			hold := epoch.Hold{Partition: orders, Claim: f.Claim}
			for what, err := range map[string]error{
				"an entry": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return add(ctx, tx) }),
				"an entry, after other statements of a text": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					return errors.Join(put(ctx, tx, "l", "v"), add(ctx, tx))
				}),
				"an entry, whose error the handler hides": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					_ = add(ctx, tx)
					return errors.New("could not ask for the charge")
				}),
				"an entry, through a pgx.Tx": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					return add(ctx, pgsink.AsPgxTx(tx))
				}),
				"an entry beside the messages": s.CommitHeld(t.Context(), hold, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error { return add(ctx, tx) }),
				"a queued entry": s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					return errors.Join(put(ctx, q, "l", "v"), add(ctx, q))
				}),
				"a queued entry, behind several statements": s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					_, err := q.Exec(ctx, several(name))
					return errors.Join(err, add(ctx, q), put(ctx, q, "l", "v"))
				}),
				"a dead letter": s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, dead),
				"a queued dead letter": s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					return s.Queued().DeadLetter(ctx, q, epoch.Message{Partition: orders}, f.Epoch, errHostile)
				}),
				"a replay": s.CommitHeld(t.Context(), hold, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					return operate.RecordsIn[pgsink.Tx](s).Replayed(ctx, tx, replay, f)
				}),
				"a queued replay": s.Queued().CommitHeld(t.Context(), hold, epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					return operate.RecordsIn[*pgsink.Queue](s.Queued()).Replayed(ctx, q, replay, f)
				}),
				"a claim":    func() error { _, err := tryClaim(t.Context(), s, orders, 6); return err }(),
				"a decision": operate.RecordsIn[pgsink.Tx](s).Record(t.Context(), []operate.Decision{{Kind: operate.DecidedHalt, Partition: orders, Epoch: 6}}),
			} {
				wantBlame(t, what, err, epoch.ErrUnhealthy)
			}
			r.sql("alter table epochfence.fence add check (next_offset < 2) not valid")
			for form, err := range r.bothForms(s, f, "select 1") {
				wantBlame(t, "the fence, "+form, err, epoch.ErrUnhealthy)
			}
		})
	}
}

// several is a text of several statements, where the mode of pgx takes one.
func several(mode string) string {
	if mode == "simple_protocol" {
		return "select 1; select 2"
	}
	return "select 1"
}

func (r *rig) letters(op operate.Operator) []operate.DeadLetter {
	r.Helper()
	ls, err := op.DeadLetters(r.Context(), operate.DeadLetterQuery{})
	if err != nil {
		r.Fatal(err)
	}
	return ls
}

// TestWhatOnlyLooksLikeATableOfEpochfencesIsTheMessages: a table of the user's that has the
// name of one of ours, and an error that says it is about one of ours.
func TestWhatOnlyLooksLikeATableOfEpochfencesIsTheMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	r.sql(`create table outbox_entry (id int primary key); create table fence_ledger (id int primary key);
		insert into outbox_entry values (1); insert into fence_ledger values (1);
		grant insert on outbox_entry, fence_ledger to ` + r.role + `;
		create function forge(code text) returns void language plpgsql as $$ begin
			raise exception using errcode = code, schema = 'epochfence', table = 'fence_ledger', constraint = 'fence_ledger_pkey'; end $$`)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for _, sql := range []string{
		"insert into outbox_entry values (1)", "insert into fence_ledger values (1)", "select forge('23505')", "select forge('XF018')",
	} {
		for form, err := range r.bothForms(s, f, sql) {
			wantBlame(t, fmt.Sprint(form, ", ", sql), err, nil)
		}
	}
	// A statement of ours that comes too late is not what has aborted the transaction.
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, _ = tx.Exec(ctx, "select 1/0")
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile)
	})
	wantBlame(t, "a dead letter in a transaction that a message has aborted", err, nil)
}
