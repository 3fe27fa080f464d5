package consumer

import (
	"errors"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
)

// This file decides which failures share a line in the log. report.go writes the lines, and
// internal/text/troubles decides how often they are repeated.

// troubleLog logs what is wrong with partitions without flooding the log.
type troubleLog struct{ *troubles.Log[epoch.Partition] }

// notClaimed is the incident that a claim ends.
const notClaimed = "not claimed, trying again"

// add records an incident. Equal failures of a partition share the lines, and so do partitions
// whose databases give the same answer.
func (ts troubleLog) add(l *slog.Logger, level slog.Level, p epoch.Partition, what string, err error, args ...any) {
	key := what + " " + p.String() + ": " + root(err)
	if what == notClaimed || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		key = what + ": " + root(err)
	}
	ts.Add(l, level, p, key, what, append(args, "err", err)...)
}

// claimed records that a partition was claimed. It may have other incidents.
func (ts troubleLog) claimed(p epoch.Partition) {
	if ts.Of(p) == notClaimed {
		ts.Well(p)
	}
}

// root returns the text of the innermost error, which partitions with the same cause share.
func root(err error) string {
	for {
		switch e := err.(type) { //nolint:errorlint // the chain itself is walked
		case interface{ Unwrap() error }:
			inner := e.Unwrap()
			if inner == nil {
				return err.Error()
			}
			err = inner
		case interface{ Unwrap() []error }:
			inner := e.Unwrap()
			if len(inner) == 0 {
				return err.Error()
			}
			err = inner[len(inner)-1]
		default:
			return err.Error()
		}
	}
}
