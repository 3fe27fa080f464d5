package pgsink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
)

// This file decides whether an error of the database is a message's fault, by its SQLSTATE and by who
// raised it. What follows from that is decided by package consumer.

// SQLSTATEs that the SQL functions raise, listed in 0001_fence.sql of internal/sql/pgschema.
const (
	codeStale      = "XF001"
	codeMoved      = "XF002"
	codeMissing    = "XF003"
	codeEscaped    = "XF004"
	codeLogChanged = "XF005"
	codeForeign    = "XF006"
	codeNotFresh   = "XF007"
	codeNoLease    = "XF008"
	codeExhausted  = "XF009"
	codeAdopted    = "XF010"
	codePaused     = "XF011"
	codeNothing    = "XF012"
	codeInvalid    = "XF013"
	codeChanged    = "XF015"
	codeElsewhere  = "XF016"
	codeSession    = "XF017"
	codeBehind     = "XF018"
	codeReach      = "XF019"
	codeOperator   = "XF020"
)

// SQLSTATEs of PostgreSQL, from its manual's appendix A.
const (
	codePermission       = "42501" // insufficient_privilege
	codeLockTimeout      = "55P03" // lock_not_available
	codeQueryCanceled    = "57014" // by a timeout or an operator
	codeNoStatement      = "26000" // invalid_sql_statement_name
	codeAborted          = "25P02" // in_failed_sql_transaction
	codeReadOnly         = "25006" // read_only_sql_transaction
	codeUnsupported      = "0A000" // feature_not_supported
	codeDiskFull         = "53100"
	codeUndefinedTable   = "42P01"
	codeUndefinedColumn  = "42703"
	codeUndefinedObject  = "42704"
	codeDatatypeMismatch = "42804"
	codeNoSuchConstraint = "42P10" // invalid_column_reference: of an ON CONFLICT
	codeSameStatement    = "42P05" // duplicate_prepared_statement
	codeInvalidCatalog   = "3D000"
	codeDataCorrupted    = "XX001"
	codeIndexCorrupted   = "XX002"
	codeUndefinedFunc    = "42883"
	codeInvalidSchema    = "3F000"
	codeProtocol         = "08P01" // protocol_violation
	codeTerminated       = "57P01" // admin_shutdown
	codeNoMoreIDs        = "2200H" // sequence_generator_limit_exceeded
)

// held reads the fence from the DETAIL of a refusal.
func held(e *pgconn.PgError) (epoch.Fence, error) {
	var r fenceRow
	if err := json.Unmarshal([]byte(e.Detail), &r); err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: the refusal %s has no fence in its DETAIL: %w", e.Code, err)
	}
	if e.Code == codeMissing {
		return epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Group: r.Group, Topic: r.Topic, Number: r.Partition}}}, nil
	}
	return r.fence()
}

// sqlState returns the SQLSTATE of the database's error in err, or nothing if err has none.
func sqlState(err error) string {
	if pg, is := errors.AsType[*pgconn.PgError](err); is {
		return pg.Code
	}
	return ""
}

// blameless returns [epoch.ErrTransient] or [epoch.ErrUnhealthy] for an error that is no message's
// fault, and otherwise nil. Of class 42 it covers the codes that a schema causes which is not the
// one that the statements expect. A handler that composes its SQL from messages can return
// consumer.Permanent.
func blameless(e *pgconn.PgError) error {
	if as := passing(e); as != nil {
		return as
	}
	if e.Routine == raised || malformed(e) {
		return nil
	}
	return lacking(e)
}

// raised is the server's routine that reports PL/pgSQL's RAISE. A user's own function or trigger
// then chose the code, about the row at hand.
const raised = "exec_stmt_raise"

// malformed reports whether the server refused a message's form: the number of arguments, or a NUL
// byte. Without a routine, the code is a pooler's and about its connection to the server.
func malformed(e *pgconn.PgError) bool { return e.Code == codeProtocol && e.Routine != "" && !fatal(e) }

func passing(e *pgconn.PgError) error {
	switch e.Code {
	case codeLockTimeout, codeNoStatement, codeSameStatement:
		return epoch.ErrTransient
	case codeUnsupported:
		if e.Routine == "RevalidateCachedQuery" { // a prepared statement's result has changed
			return epoch.ErrTransient
		}
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "40", "53": // deadlock, serialization failure; memory, locks or connections used up
		if e.Code != codeDiskFull {
			return epoch.ErrTransient
		}
	}
	return nil
}

func lacking(e *pgconn.PgError) error {
	switch e.Code {
	case codePermission:
		if e.Routine == "ExecWithCheckOptions" { // a policy of the table refuses this row
			return nil
		}
		return epoch.ErrUnhealthy
	case codeReadOnly, codeUndefinedTable, codeUndefinedColumn, codeUndefinedFunc, codeUndefinedObject, codeDatatypeMismatch,
		codeNoSuchConstraint, codeInvalidSchema, codeInvalidCatalog, codeDiskFull, codeDataCorrupted, codeIndexCorrupted:
		return epoch.ErrUnhealthy
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "08", "28", "58", "F0", "HV": // another server, credentials, the operating system, the configuration, a foreign table
		return epoch.ErrUnhealthy
	}
	return nil
}

// refusedHandlers is blameless for a handler's statement. It adds whose table or privilege is
// missing.
func refusedHandlers(e *pgconn.PgError) error {
	as := blameless(e)
	if as == nil {
		return nil
	}
	switch e.Code {
	case codePermission, codeUndefinedTable, codeUndefinedColumn, codeUndefinedFunc, codeUndefinedObject,
		codeDatatypeMismatch, codeNoSuchConstraint, codeInvalidSchema:
		return errLacks
	}
	return as
}

var errLacks error = lacks{}

type lacks struct{}

func (lacks) Error() string {
	return "the handler's statement needs what the database does not have or does not allow (a migration or a grant of the application's)"
}

func (lacks) Is(target error) bool { return target == epoch.ErrUnhealthy }

// refusedOurs is blameless for a statement of the sink's or the outbox's. A refusal by their tables
// is no message's fault, unless it is about the form of a value, or a user's function raised it.
func refusedOurs(e *pgconn.PgError) error {
	switch as := blameless(e); {
	case as != nil:
		return as
	case e.Code == codeBehind:
		return epoch.ErrUnhealthy
	case e.Routine == raised:
		return nil
	case e.Code == codeNoMoreIDs:
		return epoch.ErrUnhealthy
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "23", "55": // a constraint; the state of a table, such as a publication's
		return epoch.ErrUnhealthy
	}
	return nil
}

// outlives reports whether e may occur again on this connection, and not on another one: its
// prepared statements are not those of pgx's cache, its server has become a standby, or a setting
// that a statement left behind, such as search_path or role, hides or forbids something.
func outlives(e *pgconn.PgError) bool {
	switch e.Code {
	case codeNoStatement, codeSameStatement, codeUnsupported, codeReadOnly,
		codeUndefinedTable, codeUndefinedFunc, codeInvalidSchema, codePermission:
		return blameless(e) != nil
	}
	return false
}

// ours marks an error of a statement of the sink's or the outbox's, see [refusedOurs].
func ours(err error) error { return markAs(err, refusedOurs) }

// passed is ours for a repeatable statement. An evict may have terminated its backend too late,
// after the transaction that it was meant for.
func passed(err error) error {
	if sqlState(err) == codeTerminated {
		return mark(err, epoch.ErrTransient)
	}
	return ours(err)
}

// faultless marks an error that is no message's fault, whoever sent the statement.
func faultless(err error) error { return markAs(err, blameless) }

func markAs(err error, meaning func(*pgconn.PgError) error) error {
	pg, is := errors.AsType[*pgconn.PgError](err)
	if !is {
		return err
	}
	return mark(err, meaning(pg))
}

func mark(err, as error) error {
	if as == nil || errors.Is(err, as) || errors.Is(as, epoch.ErrTransient) && errors.Is(err, epoch.ErrInDoubt) {
		return err
	}
	return fmt.Errorf("%w: %w", as, err)
}

// refusedClaim returns the meaning of a refusal by the function claim, or nil if err is none.
func refusedClaim(err error, c epoch.Claim) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case codeStale, codeMissing, codeLogChanged, codeForeign, codeNotFresh, codeNoLease, codeExhausted, codeReach, codeOperator, codeAdopted, codePaused:
	default:
		return nil
	}
	f, broken := held(pg)
	if broken != nil {
		return errors.Join(broken, err)
	}
	switch pg.Code {
	case codeMissing:
		return &epoch.MissingError{Partition: c.Partition}
	case codeStale:
		return &epoch.StaleError{Partition: c.Partition, Ours: c.ID, Held: f}
	default: // package epoch has the errors for the rest
		if _, refused := f.Claimed(c); refused != nil {
			return refused
		}
		return err
	}
}

// refusedSeed returns the meaning of a refusal by the function seed, or nil if err is none.
func refusedSeed(err error, starts []epoch.Start) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != codeLogChanged {
		return nil
	}
	f, broken := held(pg)
	if broken != nil {
		return errors.Join(broken, err)
	}
	return epoch.Fences{f.Partition: f}.Seed(starts)
}

// refusedAdvance returns the meaning of a refusal by look_early, advance or hold, or nil if err is
// none of a transaction with that nonce. A handler's statements may raise the same codes.
func refusedAdvance(err error, as *advances, nonce string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Hint != nonce {
		return nil
	}
	switch pg.Code {
	case codeEscaped:
		return epoch.ErrTxEndedByHandler
	case codeSession:
		return fmt.Errorf("%w: a function that a statement calls has changed the search_path, the role, a timeout or another setting of the session, or has made a temporary table", epoch.ErrOwnTransaction)
	case codeStale, codeMoved, codeMissing:
	default:
		return nil
	}
	f, broken := held(pg)
	if broken != nil {
		return errors.Join(broken, err)
	}
	a, ok := as.of(f.Partition)
	if !ok {
		return fmt.Errorf("pgsink: the database refused %s, which is not in this transaction: %w", f.Partition, err)
	}
	switch pg.Code {
	case codeMissing:
		return &epoch.MissingError{Partition: a.Partition}
	case codeStale:
		return &epoch.StaleError{Partition: a.Partition, Ours: a.Claim, Held: f}
	default:
		return &epoch.MovedError{Partition: a.Partition, From: a.From, Next: f.Next}
	}
}

// fatal reports whether the server ended the connection. A COMMIT under way may still succeed.
func fatal(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC")
}

// definite reports whether the server said that a statement failed, which aborts its transaction.
func definite(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !fatal(err)
}

// unencodable reports whether err is about an argument of a batch. pgx closes the connection after
// it, before it has sent any of the batch. pgx does not export the step that failed.
func unencodable(err error) bool {
	var e pgx.ErrPreprocessingBatch
	return errors.As(err, &e) && strings.HasPrefix(e.Error(), "error preprocessing batch (build)")
}

func inDoubt(err error) error {
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}

// ended adds the cause of ctx's end to err, if ctx has ended.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return cause
	case cause == nil || errors.Is(err, cause):
		return err
	default:
		return fmt.Errorf("%w: %w", cause, err)
	}
}

func explain(err error) error {
	switch sqlState(err) {
	case codePermission:
		return fmt.Errorf("%w: run epochfence grants as the schema's owner (--as application for consumers, --as operator for commands that act): %w", ErrPermission, err)
	case codeUndefinedTable, codeUndefinedFunc, codeInvalidSchema:
		return fmt.Errorf("%w: %w", pgschema.Remedy.NotMigrated(), err)
	default:
		return pgschema.Explain(err)
	}
}

// StatementError is the failure of a queued statement.
type StatementError struct {
	Number int    // from 1; 0 if several statements have this SQL, or if the number is unknown
	Of     int    // the number of queued statements
	SQL    string // as it was queued, without arguments; empty if unknown
	Err    error
}

func (e *StatementError) Error() string {
	sql := excerpt(e.SQL)
	switch {
	case e.SQL == "":
		return fmt.Sprintf("one of %d queued statements: %v", e.Of, e.Err)
	case e.Number == 0:
		return fmt.Sprintf("one of %d queued statements, %q: %v", e.Of, sql, e.Err)
	}
	return fmt.Sprintf("queued statement %d of %d, %q: %v", e.Number, e.Of, sql, e.Err)
}

// Unwrap returns the database's own error.
func (e *StatementError) Unwrap() error { return e.Err }
