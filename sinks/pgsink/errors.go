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
)

// The SQLSTATEs that the functions raise; migrations/0001_fence.sql lists them.
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
)

// SQLSTATEs of PostgreSQL, from its manual's appendix A.
const (
	codePermission      = "42501" // insufficient_privilege
	codeLockTimeout     = "55P03" // lock_not_available
	codeQueryCanceled   = "57014" // by a timeout or a person
	codeReadOnly        = "25006" // read_only_sql_transaction
	codeUndefinedTable  = "42P01"
	codeUndefinedFunc   = "42883"
	codeInvalidSchema   = "3F000"
	codeInvalidPassword = "28P01"
	codeInvalidRole     = "28000" // invalid_authorization_specification
)

// fenceRow is a fence as row_to_json has it in an error's DETAIL.
type fenceRow struct {
	Group       string       `json:"group_name"`
	Topic       string       `json:"topic"`
	Partition   int32        `json:"partition"`
	Log         string       `json:"log_id"`
	Source      string       `json:"lease_source"`
	Number      int64        `json:"lease_number"`
	Owner       string       `json:"owner"`
	Epoch       epoch.Epoch  `json:"epoch"`
	Claim       string       `json:"claim_id"`
	Next        epoch.Offset `json:"next_offset"`
	LeaderEpoch int32        `json:"leader_epoch"`
	Applied     bool         `json:"applied"`
}

// fenceColumns are the columns of a fence in the order that scan wants them.
const fenceColumns = "group_name, topic, partition, log_id, lease_source, lease_number, owner, epoch, claim_id::text, next_offset, leader_epoch, applied"

func (r *fenceRow) scan(row pgx.Row) (epoch.Fence, error) {
	err := row.Scan(&r.Group, &r.Topic, &r.Partition, &r.Log, &r.Source, &r.Number, &r.Owner,
		&r.Epoch, &r.Claim, &r.Next, &r.LeaderEpoch, &r.Applied)
	if err != nil {
		return epoch.Fence{}, err
	}
	return r.fence()
}

func (r *fenceRow) fence() (epoch.Fence, error) {
	id, err := epoch.ParseClaimID(r.Claim)
	return epoch.Fence{
		Origin: epoch.Origin{
			Partition: epoch.Partition{Group: r.Group, Topic: r.Topic, Number: r.Partition},
			Log:       r.Log,
			Source:    r.Source,
		},
		Number: r.Number, Owner: r.Owner, Epoch: r.Epoch, Claim: id, Next: r.Next, LeaderEpoch: r.LeaderEpoch, Applied: r.Applied,
	}, err
}

// held reads the fence that a refusal carries.
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

// passing marks the refusals of a transaction that are nobody's fault and pass:
// class 40 (deadlock, serialization failure), class 53 (disk, memory or
// connections used up), a lock not granted in time, and a server that has become
// a standby.
func passing(err error) error {
	var pg *pgconn.PgError
	if errors.Is(err, epoch.ErrInDoubt) || !errors.As(err, &pg) {
		return err
	}
	if strings.HasPrefix(pg.Code, "40") || strings.HasPrefix(pg.Code, "53") || pg.Code == codeLockTimeout || pg.Code == codeReadOnly {
		return fmt.Errorf("%w: %w", epoch.ErrTransient, err)
	}
	return err
}

// refusedClaim is what the function claim's refusal means, or nil if err is
// none.
func refusedClaim(err error, c epoch.Claim) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case codeStale, codeMissing, codeLogChanged, codeForeign, codeNotFresh, codeNoLease, codeExhausted, codeAdopted:
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
	default: // the protocol has the words for the rest
		if _, refused := f.Claimed(c); refused != nil {
			return refused
		}
		return err
	}
}

// refusedAdvance is what a refusal of enter or advance means, or nil if err is
// none.
func refusedAdvance(err error, as *advances) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case codeEscaped:
		return epoch.ErrEscaped
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

// fatal reports whether err is the server's word that the connection ends. It
// tells nothing about a COMMIT that is on its way.
func fatal(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC")
}

// definite reports whether err is the server's word that a statement failed,
// which aborts its transaction.
func definite(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !fatal(err)
}

// unencodable reports whether err is about an argument of a batch. pgx closes
// the connection after it, before it has sent any of the batch, and does not
// export the step at which it failed.
func unencodable(err error) bool {
	var e pgx.ErrPreprocessingBatch
	return errors.As(err, &e) && strings.HasPrefix(e.Error(), "error preprocessing batch (build)")
}

// inDoubt says that the connection is gone.
func inDoubt(err error) error {
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}

// ended adds the reason for which a context ended, if it did, to the error that
// came of it.
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

// explain adds to an error of a call what to do about it, where that is known.
func explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case codePermission:
		return fmt.Errorf("%w: %w", ErrPermission, err)
	case codeUndefinedTable, codeUndefinedFunc, codeInvalidSchema:
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	default:
		return explainServer(err)
	}
}

// explainServer does so for an error that has to do with the server at large.
func explainServer(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case codeReadOnly:
		return fmt.Errorf("the server or the session is read-only: connect to the primary (target_session_attrs=read-write): %w", err)
	case codeInvalidPassword, codeInvalidRole:
		return fmt.Errorf("the server refused the credentials: %w", err)
	default:
		return err
	}
}
