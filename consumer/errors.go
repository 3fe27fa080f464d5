package consumer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file has the errors that users and sources see. reason.go decides which reason an error
// gives a halt, and verdict.go whether a message is at fault.

// ErrLost is the cause of a tenure's context after the lease was lost. Confirm returns it
// when the source answered that the lease is not granted.
var ErrLost = errors.New("lease lost")

// ErrBlocked is returned by a source that can be read, and does not go on from the position until an
// operator has done what the error says.
var ErrBlocked = errors.New("needs an operator")

// Reasons for a lost lease other than a rebalance. Errors match them in addition to [ErrLost].
var (
	// ErrLeaseExpired is returned when the source acknowledged nothing from this process for
	// about the lease's term.
	ErrLeaseExpired = errors.New("lease expired")

	// ErrDrainOverrun is returned when a revoked partition was not given back in time.
	ErrDrainOverrun = errors.New("the partition was revoked and not given back in time")
)

// Kinds of [*PositionError], which match them with [errors.Is].
var (
	// ErrOffsetExpired is returned when messages may have been removed before they were applied: the
	// log begins above the position, or has a gap above it in which messages of the partition may
	// have been.
	ErrOffsetExpired = errors.New("messages may have been deleted before they were applied")

	// ErrTruncated is returned when the log ends below the position, or was rewritten below
	// it: messages that were applied are gone from the log, or are others now.
	ErrTruncated = errors.New("log was truncated below the position")

	// ErrOutOfOrder is returned when the source delivers an offset below the position.
	ErrOutOfOrder = errors.New("offset below the position came again")
)

// PositionError is the reason of a halt when the log and the position do not match. No message is
// skipped; an operator decides.
type PositionError struct {
	Partition epoch.Partition
	Kind      error        // ErrOffsetExpired, ErrTruncated or ErrOutOfOrder
	Position  epoch.Offset // where the fence is
	Found     epoch.Offset // what the log has instead: its beginning, its end, or the offset that came
}

func (e *PositionError) Error() string {
	const find = "; find out what is missing, then set the position with epochfence rewind"
	do := "the log continues at offset %d" + find
	switch {
	case errors.Is(e.Kind, ErrTruncated):
		do = "the log ends at offset %d, or has another message there" + find
	case errors.Is(e.Kind, ErrOutOfOrder):
		do = "offset %d came; nothing was applied again, and epochfence evict lets the owner read from its position again"
	}
	return fmt.Sprintf("%s: %v: the fence is at offset %d, "+do, e.Partition, e.Kind, e.Position, e.Found)
}

// Unwrap returns e.Kind.
func (e *PositionError) Unwrap() error { return e.Kind }

// HandlerError is the failure of a message: an error of its handler, or the database's
// refusal to commit what the handler wrote.
type HandlerError struct {
	Partition epoch.Partition
	Offset    epoch.Offset
	Attempts  int
	Err       error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("%s: the message at offset %d failed, attempt %d: %v", e.Partition, e.Offset, e.Attempts, e.Err)
}

// Unwrap returns the error of the handler or the database.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is the error for a panic of a handler. Its text is one line and names the
// functions that panicked.
type PanicError struct {
	Value any
	Stack []byte // all of it, as [debug.Stack] returns it

	text  string // of Value, whose methods are the user's code
	cause error  // Value, if it is an error
}

func newPanicError(value any, stack []byte) *PanicError {
	e := &PanicError{Value: value, Stack: stack}
	if err, is := value.(error); is {
		e.cause = inert.Error(err)
		e.text = e.cause.Error()
	} else {
		e.text = inert.Text(value)
	}
	return e
}

func (e *PanicError) Error() string {
	text := e.text
	if text == "" {
		text = inert.Text(e.Value)
	}
	text = "panic: " + text
	if _, panicked, found := strings.Cut(string(e.Stack), "\npanic("); found {
		_, callers, _ := strings.Cut(panicked, "\n")
		if in := framesOf(callers, maxPanicFrames); len(in) > 0 {
			text += " in " + strings.Join(in, ", ")
		}
	}
	return text
}

const maxPanicFrames = 5

// Unwrap returns an error in which [errors.Is] and [errors.As] find the value of the panic,
// if that was an error.
func (e *PanicError) Unwrap() error { return e.cause }

// Inert marks e as safe: its text and its chain run no user code.
func (e *PanicError) Inert(inert.Mark) {}

// Permanent marks an error that no retry can fix. The message goes to [Handlers.OnFailure]
// at once. Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{inert.Error(err)}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Inert marks e as safe: [Permanent] made its error inert.
func (e *permanentError) Inert(inert.Mark) {}

func isPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}
