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
	"github.com/epochfence/epochfence/internal/sql/stopat"
)

// This file runs the calls in one transaction with the check of the fence at its end, and decides
// what is known after an error. blame.go decides whose fault it is.

// Commit implements [epoch.Sink]. It takes two round trips beside those of calls. The first begins
// the transaction, sets its timeouts and checks whether the advances would be refused already. The
// second moves the fences and commits. Right after a claim or a commit of the same partitions, the
// early check is skipped and, in pgx's default query mode, the first round trip goes with the first
// statement of a call.
//
// A text that is not plain reading or writing runs alone: if calls share the transaction, it is
// refused ([epoch.ErrOwnTransaction]). If a function that a statement calls changes the session,
// such as its search_path or role, or makes a temporary table, the check at the end finds it,
// and a shared transaction is rolled back with the same error. A call that is alone commits. In
// both cases its connection is closed, which costs the next transaction a new one.
//
// While the transaction is open, it holds a shared advisory lock on a key derived from each claim.
// A later [Sink.Claim] finds the transaction by that lock and ends it. The connection is then lost,
// which is [epoch.ErrInDoubt].
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, tx Tx) error) error {
	set, err := newAdvances(as)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, o, len(calls) <= 1, calls...); err != nil {
		return fmt.Errorf("pgsink: commit %s: %w", set, err)
	}
	return nil
}

// CommitHeld implements [epoch.Holding]. It is [Sink.Commit] with another check at the end, which
// locks the fence FOR KEY SHARE. A Commit of the partition can run beside it at any time, also
// between this check and its commit. A Claim ends the transactions that it finds, this one too, and
// then waits for the lock. Under REPEATABLE READ and SERIALIZABLE, a claim that was replaced
// meanwhile is a serialization failure ([epoch.ErrTransient]).
func (s *Sink) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, tx Tx) error) error {
	set, err := newHeld(h)
	if err != nil {
		return err
	}
	if err := s.commit(ctx, set, o, true, apply); err != nil {
		return fmt.Errorf("pgsink: commit %s under its claim: %w", set, err)
	}
	return nil
}

// commit runs calls. If they are alone, they may send what would change the session for others.
func (s *Sink) commit(ctx context.Context, as *advances, o epoch.TxOptions, alone bool, calls ...func(context.Context, Tx) error) error {
	return s.onCommit(ctx, o, func(conn *pgx.Conn) (err error) {
		t := s.newFenced(ctx, conn, as, o, alone)
		if o.Beside != nil && len(calls) > 1 {
			t.turn = newTurn()
		}
		if t.turn != nil || !t.mayBeginLate() {
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
		if !t.begun { // no call has sent anything
			last := &handlerTx{fenced: t, conn: conn, as: as}
			if _, err := last.begin(ctx); err != nil {
				return ended(ctx, err)
			}
		}
		return t.commit(ctx)
	})
}

// call runs one call. After an error the transaction is over, and the calls behind it are not made.
func (t *fenced) call(ctx context.Context, i int, call func(context.Context, Tx) error) error {
	tx := &handlerTx{fenced: t, conn: t.conn, as: t.as, call: i}
	if t.turn != nil {
		return tx.runBeside(ctx, call)
	}
	err := tx.judge(tx.run(ctx, call))
	switch {
	case tx.unbegun != nil:
		return ended(ctx, err)
	case err != nil || t.conn.IsClosed(): // the calls behind it would be pointless too
		return t.abandon(ctx, err)
	}
	return tx.undo(ctx)
}

// onCommit is each for a Commit, to which an unreachable server is a lost connection.
func (s *Sink) onCommit(ctx context.Context, o epoch.TxOptions, f func(*pgx.Conn) error) error {
	err := s.each(ctx, harmful, o, f)
	if _, is := err.(unreachable); is && ctx.Err() == nil { //nolint:errorlint // outermost only: a handler's error may hold one
		return inDoubt(err)
	}
	return err
}

// Results of PgConn.TxStatus.
const (
	noTransaction      = 'I'
	inTransaction      = 'T'
	abortedTransaction = 'E'
)

// fenced is one transaction, from its beginning to what is known of its end. Both modes use it.
type fenced struct {
	sink  *Sink
	ctx   context.Context // of the Commit
	stop  stopat.Stop     // called before each statement of a handler
	as    *advances
	asked epoch.TxOptions
	conn  *pgx.Conn
	alone bool // there is one call, or none
	mode  pgx.QueryExecMode
	nonce string // distinguishes the functions' results and errors from those of a handler's statements
	xid   *int64 // nil until the server has returned it

	timeouts string  // statement_timeout and lock_timeout: see sessionState
	expected *string // the session's state at the end; nil if the server noted it at the beginning
	role     *string // the setting; nil if the server noted it at the beginning

	proven   time.Time // until when as is known not to be refused; zero if unknown
	entering int       // the number of statements that begin the transaction
	begun    bool      // the server has answered them
	sent     time.Time // just before the statements that end it were sent

	altered string // the first text that is not plain; empty if there was none
	spoilt  bool   // the session is not what it was, though no text shows it

	isCut atomic.Bool
	turn  *turn // nil unless calls run beside each other
}

// callAll runs the calls until one fails. If the transaction is abandoned meanwhile, the call that
// hangs keeps a closed connection.
func (t *fenced) callAll(ctx context.Context, calls []func(context.Context, Tx) error) error {
	stop := t.asked.AfterAbandoned(t.cut)
	defer stop() // also when a call panics
	err := t.asked.Each(len(calls), func(i int) error {
		if err := t.uncut(); err != nil {
			return err
		}
		return t.call(ctx, i, calls[i])
	})
	if t.turn != nil {
		err = t.endBeside(ctx, err)
	}
	if !stop() {
		closeNow(t.conn)
		return epoch.Abandoned(err)
	}
	return err
}

// cut ends the transaction while a call of its handler may be using the connection. The server
// rolls back at once, or after the statement under way, which has a timeout.
func (t *fenced) cut() {
	t.isCut.Store(true)
	_ = t.conn.PgConn().Conn().Close()
	if t.turn != nil {
		close(t.turn.gone)
	}
}

// uncut returns an error once cut was called.
func (t *fenced) uncut() error {
	if t.isCut.Load() {
		return fmt.Errorf("pgsink: %w", epoch.ErrAbandoned)
	}
	return nil
}

// discard closes the connection if another transaction might meet something on it.
func (t *fenced) discard() {
	if (t.altered != "" || t.spoilt) && !t.conn.IsClosed() {
		closeNow(t.conn)
	}
}

// own marks an error that is no message's fault, and notes whether the connection must be closed.
func (t *fenced) own(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && outlives(pg) {
		t.spoilt = true
	}
	return faultless(err)
}

func (s *Sink) newFenced(ctx context.Context, conn *pgx.Conn, as *advances, o epoch.TxOptions, alone bool) *fenced {
	return &fenced{sink: s, ctx: ctx, stop: stopat.Of(ctx), as: as, asked: o, conn: conn, alone: alone, mode: queryMode(conn), nonce: strconv.FormatUint(rand.Uint64(), 36), proven: s.proofs.spend(as)}
}

// last returns the last statement before COMMIT, which checks the fences.
func (t *fenced) last() (sql string, args []any) {
	a, lock := t.as.list[0], t.as.locks[0]
	p, claim := a.Partition, a.Claim.String()
	if t.as.held {
		return t.sink.sql.hold, []any{p.Group, p.Topic, p.Number, claim, t.xid, lock, t.nonce, t.expected}
	}
	advance := t.sink.sql.shared
	if t.alone {
		advance = t.sink.sql.alone
	}
	if len(t.as.list) == 1 {
		return advance.one, []any{p.Group, p.Topic, p.Number, claim, int64(a.From), int64(a.To), int64(a.Mark), t.xid, lock, t.nonce, t.expected}
	}
	return advance.several, append(t.as.columns(), t.xid, lock, t.nonce, t.expected)
}

// batchOf returns an empty batch with room for n statements.
func batchOf(n int) *pgx.Batch { return &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, n)} }

// queueCommit adds the check and the COMMIT. They travel together because the fence is locked
// between them.
func (t *fenced) queueCommit(b *pgx.Batch) {
	sql, args := t.last()
	b.Queue(sql, args...)
	b.Queue("commit")
	t.sent = time.Now()
}

// refused returns what the check means by err, or nil if err is not the check's.
func (t *fenced) refused(err error) error { return refusedAdvance(err, t.as, t.nonce) }

// commit moves the fences and commits, in one round trip: if advance raises, the server skips the
// COMMIT behind it.
func (t *fenced) commit(ctx context.Context) error {
	if ctx.Err() != nil {
		return t.abandon(ctx, nil)
	}
	simple := queryMode(t.conn) == pgx.QueryExecModeSimpleProtocol
	if t.altered != "" {
		if pg := t.conn.PgConn(); simple && (pg.ParameterStatus("client_encoding") != "UTF8" || pg.ParameterStatus("standard_conforming_strings") != "on") {
			return t.abandon(ctx, &epoch.CallError{Err: fmt.Errorf("%w: %q has changed them", errEncoding, t.altered)})
		}
		if err := t.restoreRole(ctx, simple); err != nil {
			return t.failed(ctx, explain(err))
		}
	}
	// The simple protocol prepares nothing, and a pooler in between may not know prepared statements.
	if (t.altered != "" || t.sink.unnamed.Load()) && !simple {
		return t.commitUnnamed(ctx)
	}
	b := batchOf(2)
	t.queueCommit(b)
	r := t.conn.SendBatch(ctx, b)
	var changed string
	if err := r.QueryRow().Scan(nil, &changed); err != nil {
		_ = r.Close()
		return t.failed(ctx, ours(explain(err)))
	}
	t.changed(changed)
	tag, err := r.Exec()
	_ = r.Close() // the answer counts, whatever happens to the connection afterwards
	return t.committed(ctx, tag, err)
}

// restoreRole sets the role that the transaction began with, because another role may not be
// allowed to execute the sink's functions.
func (t *fenced) restoreRole(ctx context.Context, simple bool) error {
	unprepared := pgx.QueryExecModeExec
	if simple {
		unprepared = pgx.QueryExecModeSimpleProtocol
	}
	_, err := t.conn.Exec(ctx, t.sink.sql.restore, unprepared, t.role)
	return err
}

// commitUnnamed is the end of commit without pgx's prepared statements, which the handler may have
// deallocated.
func (t *fenced) commitUnnamed(ctx context.Context) error {
	sql, values := t.last()
	var args pgx.ExtendedQueryBuilder
	if err := args.Build(t.conn.TypeMap(), nil, values); err != nil {
		return t.abandon(ctx, err)
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

// committed interprets the answer to COMMIT. Only the tag COMMIT means that it is committed.
// Without any answer, nobody but the fence knows.
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
		// The server answers the COMMIT of an aborted transaction with ROLLBACK.
		return fmt.Errorf("the server answered COMMIT with %s: nothing was committed", tag)
	}
}

// refusedCommit is for an error that the server has answered COMMIT with, such as that of a
// deferred constraint: nothing is committed, and that is known.
func (t *fenced) refusedCommit(err error) error {
	if vanished(err) {
		t.sink.unnamed.Store(true)
	}
	return fmt.Errorf("the database refused the COMMIT: %w", t.own(err))
}

// failed interprets an error that came before the answer to COMMIT, when COMMIT may have been sent.
func (t *fenced) failed(ctx context.Context, err error) error {
	var unsent pgx.ErrPreprocessingBatch
	switch {
	case definite(err): // the server has aborted the transaction, and skips the COMMIT behind
		if refused := t.refused(err); refused != nil {
			err = refused
		}
		if errors.Is(err, epoch.ErrOwnTransaction) { // only the check of the session returns it here
			t.varied()
		}
		if vanished(err) {
			t.sink.unnamed.Store(true)
		}
		if t.altered != "" && t.alone && t.refused(err) == nil { // because of a role, or a read-only transaction
			err = fmt.Errorf("after the handler's %q the position could not be moved: %s", t.altered, err) //nolint:errorlint // the text alone: the state of the database is not the reason
			return t.abandon(ctx, &epoch.CallError{Err: err})
		}
		return t.abandon(ctx, t.own(err))
	case pgconn.SafeToRetry(err), errors.As(err, &unsent) && !t.conn.IsClosed(): // pgx has sent nothing of it
		return t.abandon(ctx, err)
	default: // the connection was lost, and the COMMIT may have arrived
		return inDoubt(ended(ctx, err))
	}
}

// abandon rolls back if no COMMIT of ours was executed. It returns err or a better explanation.
func (t *fenced) abandon(ctx context.Context, err error) error {
	over := ctx.Err() != nil // before we used up time
	escaped := false
	if !t.conn.IsClosed() && !t.conn.PgConn().IsBusy() {
		escaped = rollback(ctx, t.conn, t.xid)
	}
	switch {
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return err
	case escaped && err != nil: // what the handler wrote may be there, whatever its error says
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
	case t.conn.IsClosed() && !closedByHandler(err): // by a later claim, for example, which only the fence tells
		return inDoubt(err)
	default:
		return err
	}
}

// closedByHandler reports whether the handler is why the connection was closed, and not the end of
// the transaction's context: a context of its own ended within a statement, an argument could not
// be encoded, or a goroutine was still running. To claim again would only repeat the error.
func closedByHandler(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, errLeaked) || unencodable(err)
}
