package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	locks "github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// protect configures the protection of a table, as the superuser.
func (r *rig) protect(table string, p pgsink.Protection) {
	r.Helper()
	must(r, pgsink.Protect(r.Context(), r.admin, table, p, pgsink.Options{Schema: r.schema}))
}

// outside is what was counted, as table:role:transactions.
func (r *rig) outside() string {
	r.Helper()
	ts, err := r.operatorAt(r.TB, r.operatorsURL).Protected(r.Context())
	must(r, err)
	var all []string
	for _, t := range ts {
		for _, w := range t.Outside {
			all = append(all, fmt.Sprintf("%s:%s:%d", t.Table, map[string]string{r.role: "app", r.operators: "operators"}[w.Role], w.Transactions))
		}
	}
	return strings.Join(all, " ")
}

func (r *rig) wantOutside(what, want string) {
	r.Helper()
	if got := r.outside(); got != want {
		r.Fatalf("%s: counted %q; want %q", what, got, want)
	}
}

// asApp runs each text as a transaction of the application's role that no sink has begun.
func (r *rig) asApp(texts ...string) error {
	r.Helper()
	conn := connect(r.TB.(*testing.T), r.appURL)
	for _, text := range texts {
		if _, err := conn.Exec(r.Context(), text); err != nil {
			return err
		}
	}
	return nil
}

// fencedForms are the ways to commit as a sink does. Each takes a function that writes.
func fencedForms(t *testing.T, r *rig, s *pgsink.Sink, write func(ctx context.Context, tx execer) error) map[string]error {
	ctx := t.Context()
	other := epoch.Partition{Group: "billing", Topic: "orders", Number: 9}
	seed(t, s, orders, other)
	f, g := claim(t, s, orders, 5), claim(t, s, other, 5)
	in := func(ctx context.Context, tx pgsink.Tx) error { return write(ctx, tx) }
	queued := func(ctx context.Context, q *pgsink.Queue) error { return write(ctx, q) }
	commit := func(n epoch.Offset, calls ...func(context.Context, pgsink.Tx) error) error {
		err := s.Commit(ctx, advance(f, n), epoch.TxOptions{}, calls...)
		f.Next += n
		return err
	}
	errs := map[string]error{}
	errs["one"] = commit(1, in)
	errs["no message"] = commit(0, in)
	errs["calls that share the transaction"] = commit(2, in, in)
	errs["queued"] = s.Queued().Commit(ctx, advance(f, 1), epoch.TxOptions{}, queued, queued)
	f.Next++
	errs["several partitions"] = s.Commit(ctx, append(advance(f, 1), advance(g, 1)...), epoch.TxOptions{}, in)
	f.Next, g.Next = f.Next+1, g.Next+1
	errs["held"] = s.CommitHeld(ctx, holdOf(f), epoch.TxOptions{}, in)
	errs["held and queued"] = s.Queued().CommitHeld(ctx, holdOf(f), epoch.TxOptions{}, queued)
	errs["a nested transaction"] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
		p := pgsink.AsPgxTx(tx)
		undone := pgx.BeginFunc(ctx, p, func(in pgx.Tx) error { return errors.Join(write(ctx, in), errHostile) })
		if !errors.Is(undone, errHostile) {
			return undone
		}
		return pgx.BeginFunc(ctx, p, func(in pgx.Tx) error { return write(ctx, in) })
	})
	for name, texts := range map[string][2]string{
		"an open savepoint":                      {"savepoint a", ""},
		"constraints made immediate before":      {"set constraints all immediate", ""},
		"constraints made immediate after":       {"", "set constraints all immediate"},
		"constraints made immediate twice":       {"set constraints all immediate", "set constraints all deferred; set constraints all immediate"},
		"constraints made immediate three times": {"set constraints all immediate; set constraints all immediate", "set constraints all immediate"},
		"reset all":                              {"", "reset all"},
	} {
		errs[name] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
			for _, step := range []func() error{
				func() error { return texted(ctx, tx, texts[0]) }, func() error { return write(ctx, tx) },
				func() error { return texted(ctx, tx, texts[1]) }, func() error { return write(ctx, tx) },
			} {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	errs["a dead letter"] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
		return errors.Join(write(ctx, tx), s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile))
	})
	op := r.operatorAt(t, r.operatorsURL)
	_, err := op.DoDeadLetter(ctx, operate.DeadLetterAct{Kind: operate.Replay, Seen: r.letters(op)[0], By: "anna", Reason: "again"})
	must(t, err)
	records := operate.RecordsIn[pgsink.Tx](s)
	asked, err := records.Requests(ctx, []epoch.Partition{orders})
	must(t, err)
	errs["a replay"] = s.CommitHeld(ctx, holdOf(f), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		return errors.Join(write(ctx, tx), records.Replayed(ctx, tx, asked.Replays[0], f))
	})
	member, err := locks.Open(ctx, memstore.New(), locks.Options{Group: "jobs", Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer member.Close()
	errs["lease.Do"] = locks.Do(ctx, member, s, "nightly", func(ctx context.Context, tx pgsink.Tx, _ epoch.Epoch) error { return write(ctx, tx) })
	return errs
}

// texted sends the statements of a text one by one.
func texted(ctx context.Context, tx execer, text string) error {
	for one := range strings.SplitSeq(text, ";") {
		if one = strings.TrimSpace(one); one != "" {
			if _, err := tx.Exec(ctx, one); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAFencedTransactionIsNeitherCountedNorRefused(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		for name, statement := range map[string]string{
			"insert":   "insert into effects (list, value) values ('a', 'b')",
			"conflict": "insert into stock values (1, 5) on conflict (item) do update set left_over = stock.left_over + 1",
			"update":   "update stock set left_over = left_over + 1",
			"delete":   "delete from stock where item > 100; insert into stock select max(item) + 101, 1 from stock; delete from stock where item > 100",
			"truncate": "truncate effects",
		} {
			t.Run(fmt.Sprintf("%s, refuse %t", name, refuse), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.sql("grant delete on stock to " + r.role + "; grant truncate on effects to " + r.role)
				r.protect("effects", pgsink.Protection{Refuse: refuse})
				r.protect("stock", pgsink.Protection{Refuse: refuse})
				for form, err := range fencedForms(t, r, r.open(), func(ctx context.Context, tx execer) error { return texted(ctx, tx, statement) }) {
					if err != nil {
						t.Errorf("%s: %v", form, err)
					}
				}
				r.wantOutside("fenced transactions", "")
			})
		}
	}
}

// What consumers do: each message, batches of them, a queue, and work in the background.
func TestAConsumerIsNotCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.protect("effects", pgsink.Protection{Refuse: true})
	s := r.open()
	var worked chan error // the messages wait for it: the claim ends with them
	for name, h := range map[string]consumer.Handlers[pgsink.Tx]{
		"each": consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if err, ok := <-worked; ok && err != nil {
				t.Errorf("in the background: %v", err)
			}
			return put(ctx, tx, "each", string(m.Value))
		}),
		"batches": consumer.Batches(func(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			if err, ok := <-worked; ok && err != nil {
				t.Errorf("in the background: %v", err)
			}
			for _, m := range ms {
				if err := put(ctx, tx, "batches", string(m.Value)); err != nil {
					return err
				}
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			worked = make(chan error, 1)
			var once sync.Once // another claim has background work of its own
			log := memsource.New(name, 1)
			log.Append(0, "1", "2", "3")
			must(t, memsource.Apply(ctx, log, s, h.Background(func(ctx context.Context, b consumer.Background[pgsink.Tx]) {
				err := b.Do(ctx, putting("background", name))
				once.Do(func() { worked <- err; close(worked) })
			})))
			r.wantList(name, "1", "2", "3")
		})
	}
	r.wantOutside("consumers", "")
}

func TestAWriteFromOutsideIsCountedOnceForItsTransactionByTableAndRole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("grant insert on stock to " + r.operators + "; grant truncate on effects to " + r.role)
	r.protect("effects", pgsink.Protection{})
	r.protect("public.stock", pgsink.Protection{})
	before := time.Now().Add(-time.Minute)
	for n, texts := range [][]string{
		{"insert into effects (list, value) select 'x', g::text from generate_series(1, 10000) g"},
		{"begin", "insert into effects (list, value) values ('x', '1')", "update effects set value = '2'", "savepoint a", "update effects set value = '3'", "commit"},
		{"begin", "savepoint a", "update effects set value = '4'", "rollback to a", "update effects set value = '5'", "commit"},
		{"set application_name = 'psql'", "truncate effects"},
		{"begin", "set constraints all immediate", "insert into effects (list, value) values ('x', '1')", "insert into effects (list, value) values ('x', '1')", "set constraints all immediate", "commit"},
	} {
		must(t, r.asApp(texts...))
		r.wantOutside(strings.Join(texts, "; "), fmt.Sprintf("effects:app:%d", n+1))
	}
	ts, err := r.operatorAt(t, r.operatorsURL).Protected(t.Context())
	must(t, err)
	if w := ts[0].Outside[0]; w.Application != "" || !w.First.After(before) || w.Last.Before(w.First) || w.Now.Before(w.Last) {
		t.Errorf("counted: %+v", w)
	}
	if _, err := connect(t, r.operatorsURL).Exec(t.Context(), "insert into stock values (7, 1)"); err != nil {
		t.Fatal(err)
	}
	r.wantOutside("two tables, two roles", "effects:app:5 stock:operators:1")
}

func TestWhatIsNoWriteFromOutsideIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		r := newRig(t)
		r.protect("effects", pgsink.Protection{Refuse: refuse})
		r.protect("stock", pgsink.Protection{Refuse: refuse, Except: []string{r.role}})
		for _, texts := range [][]string{
			{"begin", "insert into effects (list, value) values ('x', '1')", "rollback"},
			{"begin", "savepoint a", "insert into effects (list, value) values ('x', '1')", "rollback to a", "commit"},
			{"update effects set value = 'none' where list = 'none'"},
			{"select * from effects"},
			{"update stock set left_over = 1"}, // the role is excepted
		} {
			must(t, r.asApp(texts...))
		}
		r.wantOutside("none of these", "")
	}
}

func TestEachRoleThatWritesFromOutsideIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.protect("effects", pgsink.Protection{})
	must(t, r.asApp(insert("x"), insert("x")))
	if _, err := connect(t, r.operatorsURL).Exec(t.Context(), insert("x")); err != nil {
		t.Fatal(err)
	}
	tables, err := r.operatorAt(t, r.operatorsURL).Protected(t.Context())
	if err != nil || len(tables) != 1 || len(tables[0].Outside) != 2 {
		t.Fatalf("%+v, %v; want one table and two roles", tables, err)
	}
	counted := map[string]int64{}
	for _, w := range tables[0].Outside {
		counted[w.Role] = w.Transactions
	}
	if counted[r.role] != 2 || counted[r.operators] != 1 {
		t.Errorf("counted %v", counted)
	}
}
