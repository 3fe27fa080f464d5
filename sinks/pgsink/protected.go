package pgsink

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file reads what the triggers of protect.go have counted.

// Protected is a table that [Protect] has been called for, or one that has counts.
type Protected struct {
	Schema, Table string
	State         ProtectionState
	Protection
	Outside []OutsideWrites // in the order of roles
}

// ProtectionState is the state of the triggers on a table.
type ProtectionState string

// The states of a protected table.
const (
	ProtectionOn       ProtectionState = "on"
	ProtectionDisabled ProtectionState = "disabled" // with ALTER TABLE … DISABLE TRIGGER
	ProtectionGone     ProtectionState = "gone"     // the table was dropped or renamed, and its counts are there
)

// OutsideWrites are the transactions of one role that have written to a table and were not fenced.
type OutsideWrites struct {
	Role         string
	Transactions int64
	First, Last  time.Time // by the clock of the database, in UTC
	Application  string    // application_name of the last transaction
	Now          time.Time // the time of the reading, by the same clock
}

// Protected returns the protected tables in the order of their names. It needs the privileges of
// [GrantReaderSQL].
func (o *Operator) Protected(ctx context.Context) ([]Protected, error) {
	found, err := o.protected(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgsink: list protected tables: %w", err)
	}
	return found, nil
}

func (o *Operator) protected(ctx context.Context) (found []Protected, err error) {
	err = o.reading(ctx, o.sql.protections, func(rows pgx.Rows) error {
		var (
			p               Protected
			mode            *string
			enabled         bool
			role, app       *string
			n               *int64
			first, last, at *time.Time
		)
		if err := rows.Scan(&p.Schema, &p.Table, &mode, &p.Except, &enabled, &role, &n, &first, &last, &app, &at); err != nil {
			return err
		}
		switch {
		case mode == nil:
			p.State = ProtectionGone
		case enabled:
			p.State = ProtectionOn
		default:
			p.State = ProtectionDisabled
		}
		p.Refuse = mode != nil && *mode == "refuse"
		if k := len(found) - 1; k < 0 || found[k].Schema != p.Schema || found[k].Table != p.Table {
			found = append(found, p)
		}
		if role != nil {
			t := &found[len(found)-1]
			t.Outside = append(t.Outside, OutsideWrites{Role: *role, Transactions: *n, First: inUTC(first), Last: inUTC(last), Application: *app, Now: inUTC(at)})
		}
		return nil
	})
	return found, err
}
