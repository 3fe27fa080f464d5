package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/inert"
)

// ErrLost is the cause with which a tenure's context is cancelled, and the
// answer of a Confirm that is known to be no.
var ErrLost = errors.New("lease lost")

// Why a lease was lost, where it was not simply taken away. They come beside [ErrLost].
var (
	// ErrLeaseExpired: nothing that this process sent was acknowledged for the term of
	// the lease, or nearly so.
	ErrLeaseExpired = errors.New("lease expired")

	// ErrDrainOverrun: the partition was revoked and not given back in time.
	ErrDrainOverrun = errors.New("the partition was revoked and not given back in time")
)

// What can be wrong between a position and a log. Errors of type
// [*PositionError] match them with [errors.Is].
var (
	// ErrOffsetExpired: the log now begins above the position; retention or a
	// deletion of records took messages that were never applied.
	ErrOffsetExpired = errors.New("messages were deleted before they were applied")

	// ErrTruncated: the log ends below the position, or was rewritten below
	// it: messages that were applied are no longer, or no longer the same, in
	// the log.
	ErrTruncated = errors.New("log was truncated below the position")

	// ErrOutOfOrder: an offset below the position came again.
	ErrOutOfOrder = errors.New("offset below the position came again")
)

// PositionError halts a partition whose log and position do not fit together.
// Nothing is skipped: an operator decides.
type PositionError struct {
	Partition epoch.Partition
	Kind      error        // ErrOffsetExpired, ErrTruncated or ErrOutOfOrder
	Position  epoch.Offset // where the fence is
	Found     epoch.Offset // what the log has instead: its beginning, its end, or the offset that came
}

func (e *PositionError) Error() string {
	return fmt.Sprintf("%s: %v: the fence is at offset %d, the log has %d; "+
		"find out what is missing, then set the position with epochfence rewind",
		e.Partition, e.Kind, e.Position, e.Found)
}

// Unwrap returns e.Kind.
func (e *PositionError) Unwrap() error { return e.Kind }

// HandlerError is what the failure of a message is reported as: its handler's,
// or the database's refusal to commit what the handler wrote.
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

// PanicError is the error that a handler's panic counts as. Its text is one line, which says
// where it panicked.
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
	text := "panic: " + cmp.Or(e.text, inert.Text(e.Value))
	if _, panicked, found := strings.Cut(string(e.Stack), "\npanic("); found {
		_, callers, _ := strings.Cut(panicked, "\n") // of panic
		if in := framesOf(callers, maxPanicFrames); len(in) > 0 {
			text += " in " + strings.Join(in, ", ")
		}
	}
	return text
}

// maxPanicFrames is how many calls the text tells of.
const maxPanicFrames = 5

// Unwrap returns an error in which [errors.Is] and [errors.As] find the value of the panic,
// if that was an error.
func (e *PanicError) Unwrap() error { return e.cause }

// Inert says that e has the text and the chain of its value, and asks nothing of it.
func (e *PanicError) Inert(inert.Mark) {}

// Permanent marks an error as one that no retry can help: the message goes to
// [Handlers.OnFailure] at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{inert.Error(err)}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Inert says that e, whose error [Permanent] has taken, needs no care.
func (e *permanentError) Inert(inert.Mark) {}

func isPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}
