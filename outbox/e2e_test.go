package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// ledger is the sender's database: a table of payments, one of answers, the
// fences and the outbox. db is for looking at it, if it is an SQL database.
type ledger[TX any] struct {
	db        *sql.DB
	items     cas.Store // if it is no SQL database
	sink      epoch.Sink[TX]
	process   func() epoch.Sink[TX] // the sink of another process; nil: sink will do
	store     outbox.Store[TX]
	insert    func(ctx context.Context, tx TX, m epoch.Message, table, payment string) error
	table     func(t testing.TB, name string) (payments []string)
	op        operate.Outbox
	left      func(t testing.TB) int // entries of the outbox
	guarantee epoch.Guarantee
}

// options are those of a consumer of the ledger.
func (l *ledger[TX]) options() consumer.Options {
	return consumer.Options{Guarantee: l.guarantee, RetryMin: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
}

// storeLedger keeps everything in a store of items.
func storeLedger(t testing.TB) *ledger[*cassink.Tx] {
	t.Helper()
	store := memstore.New()
	open := func() *cassink.Sink {
		s, err := cassink.Open(t.Context(), store, cassink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	sink := open()
	op := sink.Operator()
	return &ledger[*cassink.Tx]{
		items: store, sink: sink, process: func() epoch.Sink[*cassink.Tx] { return open() }, store: casoutbox.Store{}, op: op, guarantee: epoch.PerItem,
		insert: func(ctx context.Context, tx *cassink.Tx, m epoch.Message, table, payment string) error {
			_, err := tx.Update(ctx, m, table, func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(string(old.Value) + payment + "\n"), nil, nil
			})
			return err
		},
		table: func(t testing.TB, name string) []string {
			state, err := guard.Read(t.Context(), store, name)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Fields(string(state.Value))
		},
		left: func(t testing.TB) int {
			es, err := op.Entries(t.Context(), operate.OutboxQuery{Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return len(es)
		},
	}
}

func sqliteLedger(t testing.TB) *ledger[*sqlsink.Tx] {
	t.Helper()
	db := sqliteFile(t, "ledger.db")
	must(t, func() error { return sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}) })
	must(t, func() error { return sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}) })
	must(t, func() error { return sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}) }) // again: nothing to do
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	op, err := sqloutbox.OpenOperator(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return (&ledger[*sqlsink.Tx]{
		db: db, sink: sink, store: store, op: op,
		insert: func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Message, table, payment string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO `+table+` (payment) VALUES (?)`, payment)
			return err
		},
		left: func(t testing.TB) int { return count(t, db, `SELECT count(*) FROM epochfence_outbox_entry`) },
	}).tables(t)
}

func postgresLedger(t testing.TB) *ledger[pgsink.Tx] {
	t.Helper()
	d := pgtest.Start(t)
	admin := d.Superuser(t)
	role, url := d.Role(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", d.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	must(t, func() error { return pgsink.Migrate(t.Context(), admin, pgsink.Options{}) })
	must(t, func() error { return pgsink.Grant(t.Context(), admin, role, pgsink.Options{}) })
	must(t, func() error { return pgoutbox.Migrate(t.Context(), admin, pgoutbox.Options{}) })
	must(t, func() error { return pgoutbox.Migrate(t.Context(), admin, pgoutbox.Options{}) }) // again: nothing to do
	must(t, func() error { return pgoutbox.Grant(t.Context(), admin, role, pgoutbox.Options{}) })
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	human, humanURL := d.Role(t)
	grant, err := pgoutbox.GrantOperatorSQL(human, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	must(t, func() error { _, err := admin.Exec(t.Context(), grant); return err })
	humans, err := pgxpool.New(t.Context(), humanURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(humans.Close)
	op, err := pgoutbox.OpenOperator(t.Context(), humans, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := (&ledger[pgsink.Tx]{
		db: db, sink: sink, store: store, op: op,
		insert: func(ctx context.Context, tx pgsink.Tx, _ epoch.Message, table, payment string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+table+` (payment) VALUES ($1)`, payment)
			return err
		},
		left: func(t testing.TB) int { return count(t, db, `SELECT count(*) FROM epochfence_outbox.outbox_entry`) },
	}).tables(t)
	must(t, func() error {
		_, err := admin.Exec(t.Context(), `GRANT INSERT ON payments, answers TO `+role)
		return err
	})
	return l
}

func (l *ledger[TX]) tables(t testing.TB) *ledger[TX] {
	t.Helper()
	for _, name := range []string{"payments", "answers"} {
		must(t, func() error {
			_, err := l.db.ExecContext(t.Context(), `CREATE TABLE `+name+` (payment text)`)
			return err
		})
	}
	l.table = func(t testing.TB, name string) (payments []string) {
		t.Helper()
		rows, err := l.db.QueryContext(t.Context(), `SELECT payment FROM `+name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var payment string
			must(t, func() error { return rows.Scan(&payment) })
			payments = append(payments, payment)
		}
		must(t, rows.Err)
		return payments
	}
	return l
}

func sqliteFile(t testing.TB, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), name)+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func must(t testing.TB, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	must(t, func() error { return db.QueryRowContext(t.Context(), query).Scan(&n) })
	return n
}

// doubtful is a sink that now and then loses the acknowledgement of a
// transaction beside the messages, which has landed or has not: a crash between
// the answer of a receiver and the deletion of its entry, as the next claim sees it.
type doubtful[TX any] struct {
	epoch.Sink[TX]
	on    *atomic.Bool
	count *atomic.Int64
}

func (s doubtful[TX]) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, TX) error) error {
	if as[0].From != as[0].To || len(calls) != 1 {
		return s.Sink.Commit(ctx, as, calls...)
	}
	return s.lose(func(apply func(context.Context, TX) error) error { return s.Sink.Commit(ctx, as, apply) }, calls[0])
}

func (s doubtful[TX]) CommitHeld(ctx context.Context, h epoch.Hold, apply func(context.Context, TX) error) error {
	return s.lose(func(apply func(context.Context, TX) error) error { return epoch.CommitHeld(ctx, s.Sink, h, apply) }, apply)
}

func (s doubtful[TX]) lose(commit func(func(context.Context, TX) error) error, apply func(context.Context, TX) error) error {
	if !s.on.Load() || rand.IntN(25) > 0 {
		return commit(apply)
	}
	s.count.Add(1)
	if rand.IntN(2) == 0 { // landed
		if err := commit(apply); err != nil {
			return err
		}
		return fmt.Errorf("%w: the acknowledgement was lost", epoch.ErrInDoubt)
	}
	lost := fmt.Errorf("%w: the connection was lost", epoch.ErrInDoubt)
	return commit(func(ctx context.Context, tx TX) error {
		if err := apply(ctx, tx); err != nil {
			return err
		}
		return lost
	})
}

// network loses requests and answers, and holds some requests back: they arrive
// once more, or after the sender has given up, whoever owns the partition by then.
type network struct {
	http.RoundTripper
	on *atomic.Bool

	mu   sync.Mutex
	held [][]*http.Request // by round, the newest last
}

var errLost = errors.New("lost in the network")

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	if !n.on.Load() {
		return n.RoundTripper.RoundTrip(req)
	}
	switch rand.IntN(12) {
	case 0:
		_ = req.Body.Close()
		return nil, errLost
	case 1: // after the effect
		if res, err := n.RoundTripper.RoundTrip(req); err == nil {
			_ = res.Body.Close()
		}
		return nil, errLost
	case 2: // it arrives, and the sender knows nothing of it
		n.hold(req)
		_ = req.Body.Close()
		return nil, errLost
	case 3: // it arrives twice
		n.hold(req)
	}
	return n.RoundTripper.RoundTrip(req)
}

func (n *network) hold(req *http.Request) {
	late := req.Clone(context.WithoutCancel(req.Context()))
	body, err := req.GetBody()
	if err != nil {
		panic(err)
	}
	late.Body = body
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.held) == 0 {
		n.held = make([][]*http.Request, 1)
	}
	newest := len(n.held) - 1
	n.held[newest] = append(n.held[newest], late)
}

// deliver ends a round, and delivers what was held back in all but the newest
// few, in no order.
func (n *network) deliver(newest int) {
	n.mu.Lock()
	n.held = append(n.held, nil)
	due := max(len(n.held)-1-newest, 0)
	late := slices.Concat(n.held[:due]...)
	n.held = n.held[due:]
	n.mu.Unlock()
	var all sync.WaitGroup
	for _, req := range late {
		all.Go(func() {
			if res, err := n.RoundTripper.RoundTrip(req); err == nil {
				_ = res.Body.Close()
			}
		})
	}
	all.Wait()
}

const (
	accounts   = 12
	partitions = 4
)

// TestEveryEntryIsAppliedOnceAndInOrderOfItsKey is all of it together: a source
// that takes partitions away unannounced, relays that continue as zombies,
// transactions in doubt, a network that loses and repeats, and a receiver that fails.
func TestEveryEntryIsAppliedOnceAndInOrderOfItsKey(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { endToEnd(t, sqliteLedger(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { endToEnd(t, postgresLedger(t)) })
	t.Run("a store", func(t *testing.T) { endToEnd(t, storeLedger(t)) })
}

func endToEnd[TX any](t *testing.T, l *ledger[TX]) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var faults atomic.Bool
	faults.Store(true)
	var doubts, outcomes [10]atomic.Int64

	// The receiver, with a database of its own.
	gateway := sqliteFile(t, "gateway.db")
	must(t, func() error {
		_, err := gateway.ExecContext(ctx, `CREATE TABLE charges (n INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT, payment TEXT, epoch INTEGER)`)
		return err
	})
	must(t, func() error { return httpfence.Migrate(ctx, gateway, httpfence.SQLite, httpfence.SQLOptions{}) })
	fence, err := httpfence.OpenSQL(ctx, gateway, httpfence.SQLite, httpfence.SQLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(httpfence.Handler(fence, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := httpfence.CallOf(req.Context())
		payment, err := io.ReadAll(req.Body)
		if err == nil {
			_, err = httpfence.Tx(req.Context()).ExecContext(req.Context(),
				`INSERT INTO charges (account, payment, epoch) VALUES (?, ?, ?)`, c.Scope, string(payment), int64(c.Epoch))
		}
		switch {
		case err != nil || faults.Load() && rand.IntN(15) == 0:
			w.WriteHeader(http.StatusInternalServerError)
		case faults.Load() && rand.IntN(15) == 0:
			panic(http.ErrAbortHandler)
		}
	}), httpfence.Options{
		Observe: func(e httpfence.Event) { outcomes[e.Outcome].Add(1) },
		Logger:  slog.New(slog.DiscardHandler),
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	defer srv.Close()

	// The senders: two processes on one group.
	topic := memsource.New("payments", partitions)
	group := topic.Group("billing")
	group.SetTerm(5 * time.Second)
	group.Script()
	net := &network{RoundTripper: srv.Client().Transport, on: &faults}
	var running sync.WaitGroup
	var members []*memsource.Member
	runCtx, stop := context.WithCancel(ctx)
	defer running.Wait()
	defer stop()
	for _, name := range []string{"a", "b"} {
		m := group.Member(name)
		members = append(members, m)
		box, err := outbox.New(l.store, outbox.Options[TX]{
			Client: &http.Client{Transport: net}, RequestTimeout: 2 * time.Second,
			RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			OnAnswer: func(ctx context.Context, tx TX, e outbox.Sent, _ outbox.Answer) error {
				return l.insert(ctx, tx, e.Message(), "answers", string(e.Body))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		handle := func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
			account := string(m.Key)
			if err := l.insert(ctx, tx, m, "payments", string(m.Value)); err != nil {
				return err
			}
			return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: srv.URL + "/charges", Body: m.Value})
		}
		running.Go(func() {
			sink := doubtful[TX]{l.sink, &faults, &doubts[0]}
			if l.process != nil {
				sink.Sink = l.process()
			}
			err := consumer.Run(runCtx, m, sink, consumer.Each(handle).Background(box.Relay), l.options())
			if err != nil {
				t.Errorf("member %s: %v", name, err)
			}
		})
	}

	// The history: messages come while partitions change hands.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	await := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("not done in time: %s: %d doubts, %d applied, %d undone, %d replayed, %d stale", what, doubts[0].Load(),
					outcomes[httpfence.Applied].Load(), outcomes[httpfence.Undone].Load(), outcomes[httpfence.Replayed].Load(), outcomes[httpfence.Stale].Load())
			}
		}
	}
	shown := func() bool { // each kind of fault, a few times
		for _, o := range []httpfence.Outcome{httpfence.Undone, httpfence.Replayed, httpfence.Stale} {
			if outcomes[o].Load() < 3 {
				return false
			}
		}
		return doubts[0].Load() > 0
	}
	for n := range int32(partitions) {
		group.Grant(members[n%2], "payments", n)
	}
	sent := 0
	for round := 0; round < 20 || !shown(); round++ {
		for a := range accounts {
			account := fmt.Sprintf("account-%d", a)
			topic.Send(account, fmt.Sprintf("%s/%04d", account, round))
			sent++
		}
		before := outcomes[httpfence.Applied].Load()
		group.Grant(members[rand.IntN(2)], "payments", int32(round)%partitions)
		await("some charges", func() bool { return outcomes[httpfence.Applied].Load() >= before+accounts/3 })
		net.deliver(partitions) // by then each of them has changed hands
	}
	faults.Store(false)
	net.deliver(0)
	// Nobody is told of what was lost, and no partition is handed over for good:
	// whoever is a zombie has to find out, and whoever is not has to continue.
	stalled := time.NewTimer(time.Minute)
	defer stalled.Stop()
	last := -1
	await("all charges", func() bool {
		left := l.left(t)
		if left != last {
			last = left
			stalled.Reset(time.Minute)
		}
		select {
		case <-stalled.C:
			t.Fatalf("nothing was delivered for a minute: %d of %d payments made, %d entries left", len(l.table(t, "payments")), sent, left)
		default:
		}
		return left == 0 && len(l.table(t, "payments")) == sent
	})

	// The verdict, from what the receiver has written.
	var charges []string
	rows, err := gateway.QueryContext(ctx, `SELECT account, payment, epoch FROM charges ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	highest := map[string]int64{}
	latest := map[string]string{}
	for rows.Next() {
		var account, payment string
		var e int64
		must(t, func() error { return rows.Scan(&account, &payment, &e) })
		if e < highest[account] {
			t.Errorf("%s charged under epoch %d after %d", payment, e, highest[account])
		}
		if payment <= latest[account] {
			t.Errorf("%s charged after %s", payment, latest[account])
		}
		highest[account], latest[account] = e, payment
		charges = append(charges, payment)
	}
	must(t, rows.Err)
	slices.Sort(charges)
	if n := len(slices.Compact(slices.Clone(charges))); len(charges) != sent || n != len(charges) {
		t.Errorf("%d charges of %d payments, want one of each of %d", len(charges), n, sent)
	}
	for _, table := range []string{"payments", "answers"} {
		all := l.table(t, table)
		slices.Sort(all)
		if different := slices.Compact(slices.Clone(all)); len(all) != sent || len(different) != sent {
			t.Errorf("%s: %d rows, %d different, want %d", table, len(all), len(different), sent)
		}
	}
	t.Logf("%d commits in doubt; the receiver applied %d, undid %d, replayed %d and refused %d as stale",
		doubts[0].Load(), outcomes[httpfence.Applied].Load(), outcomes[httpfence.Undone].Load(),
		outcomes[httpfence.Replayed].Load(), outcomes[httpfence.Stale].Load())
}
