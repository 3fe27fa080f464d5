package epoch

import (
	"errors"
	"fmt"
	"time"
)

// Mode says whether a fence takes claims. A sink that meets a mode which it does not
// know takes none.
type Mode string

const (
	// Running: claims are taken. It is the zero Mode.
	Running Mode = ""

	// Paused: none are, until an operator resumes the partition. Nothing of it is
	// committed meanwhile, as the claim that was there has been replaced.
	Paused Mode = "paused"
)

// Standing is what an operator has decided about a partition until further notice. The
// zero Standing is that of a partition which runs.
type Standing struct {
	Mode Mode

	// By and Reason are those of the act that set Mode, and Since is when that was,
	// by the clock of the sink's database, in UTC. They are for people; nothing
	// compares them.
	By, Reason string
	Since      time.Time
}

// ErrPaused: an operator has paused the partition, and no claim of it is taken.
var ErrPaused = errors.New("paused")

// PausedError is the refusal of a claim of a partition that an operator has paused.
type PausedError struct {
	Partition Partition
	Standing
}

func (e *PausedError) Error() string {
	how := "it continues once somebody resumes it"
	if e.Mode != Paused {
		how = "this program does not know that mode: update it"
	}
	return fmt.Sprintf("%s: %v: mode %q since %s, by %s: %s; %s",
		e.Partition, ErrPaused, e.Mode, e.Since.UTC().Format(time.RFC3339), e.By, e.Reason, how)
}

// Unwrap returns [ErrPaused].
func (e *PausedError) Unwrap() error { return ErrPaused }

// Accepts returns nil if the mode of the fence takes claims, and otherwise a
// [*PausedError].
func (f Fence) Accepts() error {
	if f.Standing.Mode == Running {
		return nil
	}
	return &PausedError{Partition: f.Partition, Standing: f.Standing}
}
