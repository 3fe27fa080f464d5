package epoch

import (
	"errors"
	"fmt"
	"time"
)

// This file decides whether a fence accepts claims. Package operate sets and clears a pause.

// Mode says whether a fence accepts claims. In a mode that a sink does not know, the fence accepts
// no claims.
type Mode string

const (
	// Running is the zero Mode. The fence accepts claims.
	Running Mode = ""

	// Paused means that the fence accepts no claims until an operator resumes the partition.
	// Nothing is committed meanwhile, because the pause has replaced the claim.
	Paused Mode = "paused"
)

// PauseState is the mode of a partition and the operator's reason for it. The zero PauseState is
// Running.
type PauseState struct {
	Mode Mode

	// By and Reason are the operator and the reason of the action that set Mode. Since is its time
	// by the sink's clock, in UTC. Nothing compares them.
	By, Reason string
	Since      time.Time
}

// ErrPaused is returned for a claim of a partition that an operator has paused.
var ErrPaused = errors.New("paused")

// PausedError is returned for a claim of a partition that an operator has paused. It matches
// [ErrPaused].
type PausedError struct {
	Partition Partition
	PauseState
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

// CheckRunning returns nil if the fence accepts claims, and otherwise a [*PausedError].
func (f Fence) CheckRunning() error {
	if f.Pause.Mode == Running {
		return nil
	}
	return &PausedError{Partition: f.Partition, PauseState: f.Pause}
}
