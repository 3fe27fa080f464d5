package pgsink_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

var errGoexit = errors.New("a call ended its goroutine")

// beside runs calls beside each other, as a consumer does.
func beside(calls int, call func(i int) error) error {
	errs := make(chan error, calls)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			err := errGoexit
			defer func() { errs <- err }()
			err = call(i)
		})
	}
	all.Wait()
	close(errs)
	for err := range errs { // in the order in which they have returned
		if err != nil {
			return err
		}
	}
	return nil
}

// together commits calls beside each other. Each begins when all have begun, so that the connection is
// wanted by all. An error is a CallError if a consumer would blame a call: the one that the sink blames, or else
// the first that has failed. To a consumer, panics are errors.
func together(t testing.TB, s *pgsink.Sink, f epoch.Fence, n int, call func(ctx context.Context, tx pgsink.Tx, i int) error) error {
	t.Helper()
	var open sync.WaitGroup
	open.Add(n)
	var mu sync.Mutex
	var first *epoch.CallError
	calls := make([]func(context.Context, pgsink.Tx) error, n)
	for i := range calls {
		calls[i] = func(ctx context.Context, tx pgsink.Tx) (err error) {
			err = errGoexit
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("panic: %v", v)
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil && first == nil {
					first = &epoch.CallError{Call: i, Err: err}
				}
			}()
			open.Done()
			open.Wait()
			return call(ctx, tx, i)
		}
	}
	err := s.Commit(t.Context(), advance(f, epoch.Offset(n)), epoch.TxOptions{Beside: beside}, calls...)
	if at := (*epoch.CallError)(nil); err == nil || first == nil || errors.As(err, &at) ||
		errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrTxEndedByHandler) {
		return err
	}
	return first
}

// panicking is an argument whose method panics.
type panicking struct{}

func (panicking) Value() (driver.Value, error) { panic("out of stock") }

// Of calls beside each other, one does something wrong. It is the one that is blamed, whatever that does to the
// others, and with the error that it had.
func TestOfCallsBesideEachOtherTheOneAtFaultIsBlamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	var others sync.WaitGroup // the calls beside the one at fault
	for name, c := range map[string]struct {
		says  string
		wrong func(ctx context.Context, tx pgsink.Tx) error
	}{
		"a constraint": {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error { return put(ctx, tx, "l", "refused") }},
		"hidden":       {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error { _ = put(ctx, tx, "l", "refused"); return nil }},
		"its own words": {"sold out", func(ctx context.Context, tx pgsink.Tx) error {
			_ = put(ctx, tx, "l", "refused")
			return errors.New("sold out")
		}},
		"without arguments": {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "insert into effects (value) values ('refused')")
			return err
		}},
		"no statement": {"sold out", func(context.Context, pgsink.Tx) error { return errors.New("sold out") }},
		"not prepared": {"42703", func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "insert into effects (nothing) values ($1::text)", "x")
			return err
		}},
		"not encoded": {"encode", func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "insert into effects (value, list) values ($1::text, 'x')", 1.5)
			return err
		}},
		"a query": {"22012", func(ctx context.Context, tx pgsink.Tx) error {
			return tx.QueryRow(ctx, "select 1 / $1::int", 0).Scan(new(int))
		}},
		"a batch": {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error {
			b := &pgx.Batch{}
			b.Queue("insert into effects (value) values ($1::text)", "refused")
			return tx.SendBatch(ctx, b).Close()
		}},
		"rows left open": {"left a result open", func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Query(ctx, "select generate_series(1, 10000)")
			return err
		}},
		"a row left":       {"left a result open", func(ctx context.Context, tx pgsink.Tx) error { tx.QueryRow(ctx, "select $1::int", 1); return nil }},
		"a savepoint left": {"neither committed nor rolled back", func(ctx context.Context, tx pgsink.Tx) error { _, err := pgsink.AsPgxTx(tx).Begin(ctx); return err }},
		"a panic":          {"sold out", func(ctx context.Context, tx pgsink.Tx) error { _ = put(ctx, tx, "l", "x"); panic("sold out") }},
		"a panicking value": {"out of stock", func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "insert into effects (value) values ($1::text)", panicking{})
			return err
		}},
		"Goexit": {errGoexit.Error(), func(ctx context.Context, tx pgsink.Tx) error { runtime.Goexit(); return nil }},
		"Goexit after a failure": {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error {
			_ = put(ctx, tx, "l", "refused")
			others.Wait() // until they have failed
			runtime.Goexit()
			return nil
		}},
		"rolled back after a failure in a savepoint": {"effects_value_check", func(ctx context.Context, tx pgsink.Tx) error {
			whole := pgsink.AsPgxTx(tx)
			inner, err := whole.Begin(ctx)
			if err != nil {
				return err
			}
			failed := put(ctx, inner, "l", "refused")
			_ = whole.Rollback(ctx)
			others.Wait()
			return failed
		}},
		"Goexit with rows": {errGoexit.Error(), func(ctx context.Context, tx pgsink.Tx) error {
			_, _ = tx.Query(ctx, "select generate_series(1, 10000)")
			runtime.Goexit()
			return nil
		}},
		"a transaction's end": {epoch.ErrTxControl.Error(), func(ctx context.Context, tx pgsink.Tx) error { _, _ = tx.Exec(ctx, "commit"); return nil }},
		"a setting": {epoch.ErrOwnTransaction.Error(), func(ctx context.Context, tx pgsink.Tx) error {
			_, _ = tx.Exec(ctx, "set local work_mem = '1MB'")
			return nil
		}},
	} {
		f := claim(t, s, orders, 5)
		others.Add(15)
		err := together(t, s, f, 16, func(ctx context.Context, tx pgsink.Tx, i int) error {
			if i == 11 {
				return c.wrong(ctx, tx)
			}
			defer others.Done()
			for n := range 5 {
				if err := put(ctx, tx, "l", fmt.Sprintf("%d/%d", i, n)); err != nil {
					return fmt.Errorf("beside: %w", err)
				}
			}
			return nil
		})
		var at *epoch.CallError
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.As(err, &at) || at.Call != 11 ||
			strings.Contains(err.Error(), "25P02") || strings.Contains(err.Error(), "beside") {
			t.Errorf("%s: err = %v", name, err)
		}
		for _, not := range []error{epoch.ErrInDoubt, epoch.ErrTransient, epoch.ErrTxEndedByHandler} {
			if errors.Is(err, not) {
				t.Errorf("%s: err = %v; it is %v", name, err, not)
			}
		}
		r.wantList("l")
	}
	f := claim(t, s, orders, 5)
	must(t, together(t, s, f, 16, func(ctx context.Context, tx pgsink.Tx, i int) error { return put(ctx, tx, fmt.Sprint("l", i), "x") }))
}

// Whatever a call does with the connection, those beside it wait meanwhile.
func TestCallsBesideEachOtherTakeTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	kinds := []func(ctx context.Context, tx pgsink.Tx, list string) error{
		func(ctx context.Context, tx pgsink.Tx, list string) error { return put(ctx, tx, list, "x") },
		func(ctx context.Context, tx pgsink.Tx, list string) error {
			rows, err := tx.Query(ctx, "select n from generate_series(1, 3000) n")
			if err != nil {
				return err
			}
			for rows.Next() {
				runtime.Gosched()
			}
			if rows.Err() != nil {
				return rows.Err()
			}
			return put(ctx, tx, list, "x")
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error {
			var n int
			if err := tx.QueryRow(ctx, "select $1::int", 7).Scan(&n); err != nil || n != 7 {
				return fmt.Errorf("%d, %w", n, err)
			}
			return put(ctx, tx, list, "x")
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error { // a failure within a savepoint
			inner, err := pgsink.AsPgxTx(tx).Begin(ctx)
			if err != nil {
				return err
			}
			if err := put(ctx, inner, list, "refused"); err == nil {
				return errors.New("it was not refused")
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			return put(ctx, tx, list, "x")
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error {
			b := &pgx.Batch{}
			b.Queue("insert into effects (list, value) values ($1::text, 'x')", list)
			b.Queue("select $1::int", 1)
			return tx.SendBatch(ctx, b).Close()
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromRows([][]any{{list, "x"}}))
			return err
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error {
			db := pgsink.OpenDB(tx)
			defer db.Close()
			inner, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if _, err := inner.ExecContext(ctx, "insert into effects (list, value) values ($1, $2)", list, "x"); err != nil {
				return err
			}
			return inner.Commit()
		},
		func(ctx context.Context, tx pgsink.Tx, list string) error { // one whose context ends while it waits
			over, cancel := context.WithCancel(ctx)
			cancel()
			for range 3 {
				_ = put(over, tx, list, "x")
			}
			return nil
		},
	}
	const n = 48
	for range 3 {
		f := claim(t, s, orders, 5)
		r.sql("truncate effects")
		must(t, together(t, s, f, n, func(ctx context.Context, tx pgsink.Tx, i int) error {
			return kinds[i%len(kinds)](ctx, tx, fmt.Sprint(i))
		}))
		for i := range n {
			if i%len(kinds) < len(kinds)-1 {
				r.wantList(fmt.Sprint(i), "x")
			}
		}
	}
}

// holding has the connection from when it calls until done is closed.
func holding(ctx context.Context, tx pgsink.Tx, until func(), done <-chan struct{}) error {
	rows, err := tx.Query(ctx, "select 1")
	if err != nil {
		return err
	}
	defer rows.Close()
	until()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Minute):
		return errors.New("another call waits for the connection")
	}
}

// What a handler has rolled back is not committed, although the context of its Rollback was over and others had
// the connection.
func TestARollbackBesideOthersCountsWhenItsContextIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	written, held, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	err := together(t, s, claim(t, s, orders, 5), 2, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i == 1 {
			<-written
			return holding(ctx, tx, func() { close(held) }, ended)
		}
		defer close(ended)
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		p := pgsink.AsPgxTx(tx)
		if err := put(short, p, "l", "x"); err != nil {
			return err
		}
		close(written)
		<-held
		cancel()
		if err := p.Rollback(short); err != nil {
			t.Errorf("Rollback: %v", err)
		}
		return nil
	})
	var at *epoch.CallError
	if !errors.As(err, &at) || at.Call != 0 || !errors.Is(err, epoch.ErrOwnTransaction) {
		t.Errorf("err = %v", err)
	}
	r.wantList("l")
}

// Neither Commit nor a Rollback of nothing waits for others, or fails the message.
func TestAnEndBesideOthersDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	held, ended := make(chan struct{}), make(chan struct{})
	must(t, together(t, s, claim(t, s, orders, 5), 2, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i == 1 {
			if err := holding(ctx, tx, func() { close(held) }, ended); err != nil {
				return err
			}
			return put(ctx, tx, "l", "x")
		}
		defer close(ended)
		<-held
		if err := pgsink.AsPgxTx(tx).Commit(ctx); err != nil {
			return err
		}
		return pgsink.AsPgxTx(tx).Rollback(ctx)
	}))
	r.wantList("l", "x")
}

// pgx says only the text of a statement whose argument it cannot encode. Several may have it.
func TestOfStatementsWithTheSameTextBesideEachOtherNoneIsBlamedForTheArgumentOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	const n = 8
	held := make(chan struct{})
	err := together(t, s, claim(t, s, orders, 5), n+1, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i == n {
			return holding(ctx, tx, func() {
				for close(held); pgsink.Waiting(tx) < n; runtime.Gosched() {
				}
			}, held)
		}
		<-held
		for pgsink.Waiting(tx) < i {
			runtime.Gosched()
		}
		value := int64(i)
		if i == 5 {
			value = 1 << 40
		}
		_, err := tx.Exec(ctx, "insert into effects (list, value) values ('l', ($1::int4)::text)", value)
		return err
	})
	var at *epoch.CallError
	if !errors.As(err, &at) || at.Call != 5 && !errors.Is(at.Err, epoch.ErrOwnTransaction) || !strings.Contains(err.Error(), "encode") {
		t.Errorf("err = %v", err)
	}
	if errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("err = %v, which is in doubt", err)
	}
	r.wantList("l")
}

// elements has types of pgtype with elements that are not.
type elements struct{}

func (elements) Value() (driver.Value, error) { return "x", nil }

func TestAnExecTravelsWithOthersBesideItOnlyIfNoArgumentHasAMethodOfTheHandlers(t *testing.T) {
	for _, arg := range []any{
		pgtype.Array[elements]{}, &pgtype.Array[elements]{}, pgtype.FlatArray[elements]{}, pgtype.Range[elements]{},
		pgtype.CompositeFields{elements{}}, elements{}, []elements{},
	} {
		if pgsink.IsPlain(arg) {
			t.Errorf("%T travels with others", arg)
		}
	}
	for _, arg := range []any{pgtype.Text{}, pgtype.Numeric{}, []pgtype.UUID{}, time.Time{}, []string{}, 1} {
		if !pgsink.IsPlain(arg) {
			t.Errorf("%T does not travel with others", arg)
		}
	}
}

func TestABatchThatIsClosedTwiceDoesNotWaitForThoseBeside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	closed, held, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	must(t, together(t, s, claim(t, s, orders, 5), 2, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i == 1 {
			<-closed
			return holding(ctx, tx, func() { close(held) }, ended)
		}
		defer close(ended)
		b := &pgx.Batch{}
		b.Queue("select $1::int", 1)
		results := tx.SendBatch(ctx, b)
		err := results.Close()
		close(closed)
		<-held
		return errors.Join(err, results.Close())
	}))
}

// slowFailure keeps a goroutine that has had an error until the handler returns.
type slowFailure struct{ failed, returns chan struct{} }

func (s slowFailure) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (s slowFailure) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	if d.Err != nil && strings.Contains(d.Err.Error(), "effects_value_check") {
		close(s.failed)
		<-s.returns
	}
}

// The race detector watches.
func TestAGoroutineLeftBehindBesideOthersFailsMeanwhile(t *testing.T) {
	t.Parallel()
	r, slow := newRig(t), slowFailure{make(chan struct{}), make(chan struct{})}
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.ConnConfig.Tracer = slow }))
	seed(t, s, orders)
	err := together(t, s, claim(t, s, orders, 5), 2, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i == 0 {
			go func() { _, _ = tx.Exec(ctx, "insert into effects (list, value) values ('l', 'refused')") }()
			<-slow.failed
			defer close(slow.returns)
		}
		return nil
	})
	var at *epoch.CallError
	if !errors.As(err, &at) || at.Call != 0 {
		t.Errorf("err = %v", err)
	}
	r.wantList("l")
}

// batches counts the statements of each batch.
type batches struct{ most atomic.Int64 }

func (b *batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (b *batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (b *batches) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	if n := int64(d.Batch.Len()); n > b.most.Load() {
		b.most.Store(n)
	}
	return ctx
}
func (b *batches) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (b *batches) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestExecsThatWaitForTheConnectionTravelTogether(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &batches{}
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen }))
	seed(t, s, orders)
	const n = 50
	open := make(chan struct{})
	must(t, together(t, s, claim(t, s, orders, 5), n+1, func(ctx context.Context, tx pgsink.Tx, i int) error {
		if i > 0 {
			<-open
			return put(ctx, tx, fmt.Sprint(i), "x")
		}
		rows, err := tx.Query(ctx, "select 1")
		for close(open); err == nil && pgsink.Waiting(tx) < n; runtime.Gosched() {
			err = ctx.Err()
		}
		rows.Close()
		return err
	}))
	if seen.most.Load() != n {
		t.Errorf("the largest batch had %d statements, want %d", seen.most.Load(), n)
	}
	for i := 1; i <= n; i++ {
		r.wantList(fmt.Sprint(i), "x")
	}
}

// EachKey beside Each, where a handler waits 10 ms for another service, or for nothing, and inserts a row. One
// partition, 100 keys.
//
//	go test ./sinks/pgsink -run '^$' -bench EachKey -benchtime 1x
func BenchmarkEachKey(b *testing.B) {
	const keys = 100
	for _, wait := range []time.Duration{10 * time.Millisecond, 0} {
		for _, n := range []int{1, keys} {
			messages := 40_000
			if n == 1 && wait > 0 {
				messages = 500
			}
			b.Run(fmt.Sprintf("waits %v, %d at a time", wait, n), func(b *testing.B) {
				for range b.N {
					r := newRig(b)
					log := memsource.New("orders", 1)
					for i := range messages {
						log.AppendMessages(0, consumer.Message{Key: fmt.Appendf(nil, "k%d", i%keys), Value: fmt.Append(nil, i)})
					}
					s := r.open()
					ctx, stop := context.WithCancel(b.Context())
					done := make(chan error, 1)
					var transactions, most atomic.Int64
					began := time.Now()
					go func() {
						done <- consumer.Run(ctx, log.Member("a"), s, consumer.EachKey(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
							if wait > 0 {
								<-time.After(wait)
							}
							return put(ctx, tx, string(m.Key), string(m.Value))
						}, n), consumer.Options{Logger: slog.New(slog.DiscardHandler), Observe: func(e consumer.Event) {
							if e, is := e.(consumer.Transacted); is {
								transactions.Add(1)
								most.Store(max(most.Load(), int64(e.Messages)))
							}
						}})
					}()
					<-log.UntilApplied(ctx).Done()
					took := time.Since(began)
					stop()
					must(b, <-done)
					var rows int
					must(b, r.reader.QueryRow(b.Context(), "select count(*) from effects").Scan(&rows))
					if rows != messages {
						b.Fatalf("%d rows of %d messages", rows, messages)
					}
					b.ReportMetric(float64(messages)/took.Seconds(), "messages/s")
					b.ReportMetric(float64(transactions.Load()), "transactions")
					b.ReportMetric(float64(most.Load()), "largest")
				}
			})
		}
	}
}
