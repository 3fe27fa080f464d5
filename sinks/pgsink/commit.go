package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
)

// rollbackTimeout is how long a rollback may take before the connection is
// given up instead, which has the same effect.
const rollbackTimeout = 2 * time.Second

// Commit implements [epoch.Sink]. It takes two round trips to the server beside
// those of calls: one begins the transaction, bounds it in time and looks
// whether the advances would be refused already; the other moves the fences and
// commits. Right after a claim or a commit of the same partitions there is no need to look,
// and the first of the two goes with the first statement of a call: see begin.go.
//
// What a function changes of the session that a statement calls, such as its search_path
// or role, or a temporary table, is seen at the end. If calls share the transaction it is then rolled back
// ([epoch.ErrOwnTransaction]). A call that is alone commits, and the connection is closed.
//
// While the transaction is open it holds a shared advisory lock on a key that
// derives from each claim, by which a later [Sink.Claim] finds and ends it. The
// connection is then lost, which is [epoch.ErrInDoubt].
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, calls ...func(ctx context.Context, tx Tx) error) error {
	set, err := newAdvances(as)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, calls...); err != nil {
		return fmt.Errorf("pgsink: commit %s: %w", set, err)
	}
	return nil
}

// CommitHeld implements [epoch.Sink]. It is [Sink.Commit] with another check at the
// end, which locks the fence FOR KEY SHARE: a Commit of the partition passes beside it,
// from before the check until after the commit, and a Claim waits for the lock after it
// has ended the transactions that it finds, this one too.
func (s *Sink) CommitHeld(ctx context.Context, h epoch.Hold, apply func(ctx context.Context, tx Tx) error) error {
	set, err := newHeld(h)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, apply); err != nil {
		return fmt.Errorf("pgsink: commit %s under its claim: %w", set, err)
	}
	return nil
}

func (s *Sink) commit(ctx context.Context, as *advances, calls ...func(context.Context, Tx) error) error {
	return s.onCommit(ctx, func(conn *pgx.Conn) (err error) {
		t := s.newFenced(ctx, conn, as, len(calls) <= 1)
		if !t.mayBeginLate() {
			if err := t.begin(ctx); err != nil {
				return err
			}
		}
		locks := s.watchLocks(ctx, conn, as)
		defer func() { err = locks.judge(ctx, err) }()
		defer t.discard()
		if err := t.callAll(ctx, calls); err != nil {
			return err
		}
		if !t.begun { // of one in which nothing was sent
			last := &handlerTx{fenced: t, conn: conn, as: as}
			if _, err := last.begin(ctx); err != nil {
				return ended(ctx, err)
			}
		}
		if t.session.has(deallocates) || s.unnamed.Load() {
			return t.commitUnnamed(ctx)
		}
		return t.commit(ctx)
	})
}

// call runs one call. Where it returns an error, the transaction is rolled back.
func (t *fenced) call(ctx context.Context, i int, call func(context.Context, Tx) error) error {
	tx := &handlerTx{fenced: t, conn: t.conn, as: t.as, call: i}
	err := tx.judge(tx.run(ctx, call))
	switch {
	case tx.unbegun != nil:
		return ended(ctx, err)
	case err != nil || t.conn.IsClosed(): // nor are the calls behind it of any use
		return t.abandon(ctx, err)
	}
	return tx.undo(ctx)
}

// onCommit is on for a Commit, to which an unreachable server is a lost
// connection, and no fault of the handler's.
func (s *Sink) onCommit(ctx context.Context, f func(*pgx.Conn) error) error {
	err := s.each(ctx, harmful, f)
	if _, is := err.(unreachable); is && ctx.Err() == nil { //nolint:errorlint // outermost only: a handler's error may hold one
		return inDoubt(err)
	}
	return err
}

// What PgConn.TxStatus says.
const (
	noTransaction      = 'I'
	inTransaction      = 'T'
	abortedTransaction = 'E'
)

// fenced is a transaction.
type fenced struct {
	sink  *Sink
	ctx   context.Context // of the Commit
	as    *advances
	conn  *pgx.Conn
	alone bool   // there is one call, or none
	nonce string // tells what the functions say from what a handler's statements do
	xid   *int64 // nil until the server has told it

	timeouts string  // of the transaction: see sessionState
	expected *string // what the session is to be like at the end; nil if that was noted at the beginning
	role     *string // the setting; nil if that was noted at the beginning

	proven   time.Time // until when as is known not to be refused; zero if it is not
	entering int       // statements that begin the transaction
	begun    bool      // the server has answered them
	sent     time.Time // when the statements that end it were about to be sent

	session class  // what statements have done to it
	altered string // the first statement that did

	isCut atomic.Bool // see cut
}

// callAll runs the calls, one after the other, until one fails or the transaction is abandoned.
func (t *fenced) callAll(ctx context.Context, calls []func(context.Context, Tx) error) error {
	stop := epoch.AfterAbandoned(ctx, t.cut)
	defer stop() // also when a call panics
	var err error
	for i, call := range calls {
		if err = t.uncut(); err == nil {
			err = t.call(ctx, i, call)
		}
		if err != nil {
			break
		}
	}
	if !stop() {
		closeNow(t.conn)
		return epoch.Abandoned(err)
	}
	return err
}

// cut ends the transaction while a call of its handler continues, which may use the connection
// at this moment. The server rolls back as it notices, at once unless a statement is under way,
// which it has bounded.
func (t *fenced) cut() {
	t.isCut.Store(true)
	_ = t.conn.PgConn().Conn().Close()
}

// uncut returns an error if the transaction was abandoned.
func (t *fenced) uncut() error {
	if t.isCut.Load() {
		return fmt.Errorf("pgsink: %w", epoch.ErrAbandoned)
	}
	return nil
}

// did notes what a statement does beside what it reads and writes.
func (t *fenced) did(c class, sql string) {
	if t.session |= c; c != 0 && t.altered == "" {
		t.altered = excerpt(sql)
	}
}

// discard closes a connection that is not as it was.
func (t *fenced) discard() {
	if t.altered != "" {
		t.forget()
	}
	if t.session.has(lasting|deallocates) && !t.conn.IsClosed() {
		closeNow(t.conn)
	}
}

// own marks an error of the connection's.
func (t *fenced) own(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && outlives(pg) {
		t.session |= lasting
	}
	return faultless(err)
}

func (s *Sink) newFenced(ctx context.Context, conn *pgx.Conn, as *advances, alone bool) *fenced {
	return &fenced{sink: s, ctx: ctx, as: as, conn: conn, alone: alone, nonce: strconv.FormatUint(rand.Uint64(), 36), proven: s.proofs.spend(as)}
}

// last is the last statement before COMMIT, the check of the fences.
func (t *fenced) last() (sql string, args []any) {
	if t.as.held {
		return t.sink.sql.hold, []any{t.as.groups[0], t.as.topics[0], t.as.numbers[0], t.as.claims[0], t.xid, t.as.locks[0], t.nonce, t.expected}
	}
	advance := t.sink.sql.shared
	if t.alone {
		advance = t.sink.sql.alone
	}
	if len(t.as.list) == 1 {
		a := t.as.list[0]
		return advance.one, []any{a.Partition.Group, a.Partition.Topic, a.Partition.Number, t.as.claims[0],
			t.as.froms[0], t.as.tos[0], t.as.marks[0], t.xid, t.as.locks[0], t.nonce, t.expected}
	}
	return advance.several, []any{t.as.groups, t.as.topics, t.as.numbers, t.as.claims, t.as.froms, t.as.tos, t.as.marks,
		t.xid, t.as.locks[0], t.nonce, t.expected}
}

func (t *fenced) queueCommit(b *pgx.Batch) {
	sql, args := t.last()
	b.Queue(sql, args...)
	b.Queue("commit")
	t.sent = time.Now()
}

// refused is what a refusal of the early look, advance or hold means, or nil if err is none.
func (t *fenced) refused(err error) error { return refusedAdvance(err, t.as, t.nonce) }

// commit moves the fences and commits. The two travel together: if advance
// raises, the server skips the COMMIT behind it.
func (t *fenced) commit(ctx context.Context) error {
	if ctx.Err() != nil {
		return t.abandon(ctx, nil)
	}
	simple := t.conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
	if pg := t.conn.PgConn(); simple && t.altered != "" && (pg.ParameterStatus("client_encoding") != "UTF8" || pg.ParameterStatus("standard_conforming_strings") != "on") {
		return t.abandon(ctx, &epoch.CallError{Err: fmt.Errorf("%w, as %q has", errEncoding, t.altered)})
	}
	if err := t.restoreRole(ctx); err != nil {
		return t.failed(ctx, explain(err))
	}
	b := &pgx.Batch{}
	t.queueCommit(b)
	r := t.conn.SendBatch(ctx, b)
	var changed string
	if err := r.QueryRow().Scan(nil, &changed); err != nil {
		_ = r.Close()
		return t.failed(ctx, ours(explain(err)))
	}
	t.changed(changed)
	tag, err := r.Exec()
	_ = r.Close() // whatever becomes of the connection after the answer
	return t.committed(ctx, tag, err)
}

// restoreRole puts the role back that the transaction began with, as another one may not
// execute the sink's functions. It comes before they are prepared.
func (t *fenced) restoreRole(ctx context.Context) error {
	if t.altered == "" {
		return nil
	}
	unprepared := pgx.QueryExecModeExec
	if queryMode(t.conn) == pgx.QueryExecModeSimpleProtocol {
		unprepared = pgx.QueryExecModeSimpleProtocol
	}
	_, err := t.conn.Exec(ctx, t.sink.sql.restore, unprepared, t.role)
	return err
}

// commitUnnamed is commit without the prepared statements of the connection,
// which the handler has deallocated.
func (t *fenced) commitUnnamed(ctx context.Context) error {
	if ctx.Err() != nil {
		return t.abandon(ctx, nil)
	}
	if t.conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return t.commit(ctx) // which uses none, and what it goes through may know none
	}
	sql, values := t.last()
	var args pgx.ExtendedQueryBuilder
	if err := args.Build(t.conn.TypeMap(), nil, values); err != nil {
		return t.abandon(ctx, err)
	}
	if err := t.restoreRole(ctx); err != nil {
		return t.failed(ctx, explain(err))
	}
	b := &pgconn.Batch{}
	b.ExecParams(sql, args.ParamValues, nil, args.ParamFormats, nil)
	b.ExecParams("commit", nil, nil, nil, nil)
	results, err := t.conn.PgConn().ExecBatch(ctx, b).ReadAll()
	if len(results) < 2 {
		return t.failed(ctx, ours(explain(cmp.Or(err, errors.New("no answer to COMMIT")))))
	}
	if check := results[0].Rows; len(check) == 1 {
		t.changed(string(check[0][1]))
	}
	return t.committed(ctx, results[1].CommandTag, cmp.Or(results[1].Err, err))
}

// committed judges the answer to the COMMIT.
func (t *fenced) committed(ctx context.Context, tag pgconn.CommandTag, err error) error {
	switch {
	case tag.String() == "COMMIT":
		t.sink.proofs.advanced(t.as, t.sent)
		return nil
	case definite(err):
		return t.refusedCommit(err)
	case err != nil:
		return inDoubt(ended(ctx, err))
	default:
		// The server answers an aborted transaction's COMMIT with ROLLBACK.
		return fmt.Errorf("the server answered COMMIT with %s: nothing was committed", tag)
	}
}

func (t *fenced) refusedCommit(err error) error {
	if vanished(err) {
		t.sink.unnamed.Store(true)
	}
	return fmt.Errorf("the database refused the COMMIT: %w", t.own(err))
}

// failed judges an error that came before the answer to a COMMIT that may have
// been sent.
func (t *fenced) failed(ctx context.Context, err error) error {
	var unsent pgx.ErrPreprocessingBatch
	switch {
	case definite(err):
		if refused := t.refused(err); refused != nil {
			err = refused
		}
		if errors.Is(err, epoch.ErrOwnTransaction) { // nobody else says that here
			t.varied()
		}
		if vanished(err) {
			t.sink.unnamed.Store(true)
		}
		if t.altered != "" && t.alone && t.refused(err) == nil { // by a role, or a read-only transaction
			err = fmt.Errorf("after the handler's %q the position could not be moved: %s", t.altered, err) //nolint:errorlint // the text alone: the state of the database is not the reason
			return t.abandon(ctx, &epoch.CallError{Err: err})
		}
		return t.abandon(ctx, t.own(err))
	case pgconn.SafeToRetry(err), errors.As(err, &unsent) && !t.conn.IsClosed():
		return t.abandon(ctx, err)
	default:
		return inDoubt(ended(ctx, err))
	}
}

// abandon rolls back, when no COMMIT of ours was executed, and returns err or
// what explains it better.
func (t *fenced) abandon(ctx context.Context, err error) error {
	over := ctx.Err() != nil // not because of us
	escaped := false
	if !t.conn.IsClosed() && !t.conn.PgConn().IsBusy() {
		escaped = rollback(ctx, t.conn, t.xid)
	}
	switch {
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return err
	case escaped && err != nil:
		if call, is := errors.AsType[*epoch.CallError](err); is {
			return &epoch.CallError{Call: call.Call, Err: fmt.Errorf("%w: %w", epoch.ErrTxEndedByHandler, call.Err)}
		}
		return fmt.Errorf("%w; then: %w", epoch.ErrTxEndedByHandler, err)
	case escaped:
		return epoch.ErrTxEndedByHandler
	case over:
		return ended(ctx, err)
	case err == nil:
		return inDoubt(errors.New("connection lost"))
	case t.conn.IsClosed() && !closedByHandler(err):
		return inDoubt(err)
	default:
		return err
	}
}

// closedByHandler reports whether err, of a transaction whose own context has
// not ended, tells that the handler is why the connection was closed: a context
// of its own ended within a statement, an argument could not be encoded, or a
// goroutine of it went on. Nothing was committed, and to claim again would only
// repeat it.
func closedByHandler(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, errLeaked) || unencodable(err)
}

// rollback ends the transaction xid, or whatever transaction there is if xid is
// nil, and reports whether the handler had left it by itself: then there is
// none, or another one, or xid was not aborted. It uses no parameters and no
// cache, so that it works in an aborted transaction and in every mode, in one
// round trip.
func rollback(ctx context.Context, conn *pgx.Conn, xid *int64) (escaped bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	status := conn.PgConn().TxStatus()
	if status == noTransaction && xid == nil {
		return false
	}
	if xid == nil {
		_, _ = conn.PgConn().Exec(ctx, "rollback").ReadAll()
		return false
	}
	sql := "select pg_catalog.pg_xact_status(" + xid8(*xid) + ") <> 'aborted'"
	if status != noTransaction {
		sql = "rollback; " + sql
	}
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll() // where this fails, the connection ends
	if err != nil && status == noTransaction {
		return true
	}
	for _, r := range results {
		escaped = escaped || len(r.Rows) == 1 && string(r.Rows[0][0]) == "t"
	}
	return escaped
}

// within reports whether conn, which is in a transaction, is in that of xid. It
// says so too where it gets no answer: the connection is then closed.
func within(conn *pgx.Conn, xid int64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	results, _ := conn.PgConn().Exec(ctx, leftSQL(xid)).ReadAll()
	return len(results) == 0 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "t"
}

// leftSQL asks a transaction whether it is not xid.
func leftSQL(xid int64) string {
	return "select pg_catalog.pg_current_xact_id_if_assigned() is distinct from " + xid8(xid)
}

func xid8(xid int64) string { return "'" + strconv.FormatInt(xid, 10) + "'::pg_catalog.xid8" }
