package operate

import (
	"context"
	"errors"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what consumer.Run asks of a sink that operators can operate: replays, hangs,
// requests and signs of life. Package consumer decides what to do with the answers.

// Operable is implemented by an [epoch.Sink] that operators can work with. It has an audit log and
// requests to the owners of partitions. A consumer finds it with [epoch.As]. Its methods are safe
// for concurrent use.
type Operable[TX any] interface {
	// Record adds ds to the audit log, and sets their ID, At and Role.
	Record(ctx context.Context, ds []Decision) error

	// Hangs returns the hangs of p ([DecisionKind.IsHang]) that were recorded after the last
	// decision that forgives them ([DecisionKind.ForgivesHangs]). They are newest first and at most
	// [MaxHangs]. A consumer calls Hangs once in a tenure, and at each further claim while a
	// message hangs. Hangs must be cheap for a partition without hangs.
	Hangs(ctx context.Context, p epoch.Partition) ([]Decision, error)

	// Alive records a sign of life of p. The sink sets Since, Seen and Now by its clock.
	// A consumer calls Alive when it starts, and then once in each p.Every. Alive deletes signs of
	// life of dead processes with the group and name of p and, now and then, those that are older
	// than 7 days.
	Alive(ctx context.Context, p Process) error

	// Gone deletes the sign of life of p, which has ended in good order.
	Gone(ctx context.Context, p Process) error

	// Requests returns the requests to the owners of ps. It is cheap if there are none.
	Requests(ctx context.Context, ps []epoch.Partition) (Requests, error)

	// Replayed deletes the dead letter of r in tx. tx is a transaction of Commit under the epoch e
	// in which a handler has applied r's message. If r is no longer requested, Replayed or the
	// commit returns [ErrNotRequested], and nothing is committed.
	Replayed(ctx context.Context, tx TX, r RequestedReplay, e epoch.Epoch) error

	// ReplayFailed records that the replay of r has failed under the epoch e, if it is still
	// requested. The dead letter stays, with the cause, and the request ends.
	ReplayFailed(ctx context.Context, r RequestedReplay, e epoch.Epoch, cause error) error
}

// MaxHangs limits the decisions that [Operable.Hangs] returns.
const MaxHangs = 100

// Requests are requests of operators to the owners of partitions.
type Requests struct {
	// Acts changes with each [Act] in this sink.
	Acts int64

	// Replays are some of the oldest requested replays of each partition, by ID.
	Replays []RequestedReplay
}

// RequestedReplay is an operator's request that the handler applies the message of a dead letter.
type RequestedReplay struct {
	ID      int64 // of the dead letter
	Request int64 // rises with each request for the dead letter
	Message epoch.Message
}

// ErrNotRequested is returned if the request for a replay was withdrawn, or its dead letter is
// gone. Nothing is committed.
var ErrNotRequested = errors.New("the replay is not requested any more")
