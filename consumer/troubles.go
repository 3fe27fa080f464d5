package consumer

import (
	"errors"
	"log/slog"

	"github.com/epochfence/epochfence/consumer/internal/troubles"
	"github.com/epochfence/epochfence/epoch"
)

// troubleLog writes what is wrong with partitions to the log without flooding it. Observers
// are told of everything.
type troubleLog struct{ *troubles.Log[epoch.Partition] }

// notClaimed is the trouble that a claim ends.
const notClaimed = "not claimed, trying again"

// add notes that a partition has a trouble. It has its lines with others whose
// database answers likewise.
func (ts troubleLog) add(l *slog.Logger, level slog.Level, p epoch.Partition, what string, err error, args ...any) {
	key := what + " " + p.String()
	if what == notClaimed || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		key = what + ": " + root(err)
	}
	ts.Add(l, level, p, key, what, append(args, "err", err)...)
}

// claimed notes that a partition has been claimed, which is not to say that it
// continues.
func (ts troubleLog) claimed(p epoch.Partition) {
	if ts.Of(p) == notClaimed {
		ts.Well(p)
	}
}

// root is the text of the innermost error, which does not name the partition where
// the cause is one that many have.
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
