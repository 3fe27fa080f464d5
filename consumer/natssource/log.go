package natssource

import (
	"context"
	"errors"
	"iter"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file is the LOG side's: it is here so that both sides compile.

// streamLog is one stream, as its partitions read it.
type streamLog struct {
	stream  Stream
	renewed func() // called when the stream was seen to be another one
}

// incarnation is one life of a stream, from its creation to its deletion.
type incarnation struct{ created int64 }

var errNotWritten = errors.New("natssource: not written yet")

func openLog(_ context.Context, _ Options, s Stream) (*streamLog, error) {
	return &streamLog{stream: s, renewed: func() {}}, errNotWritten
}

func (l *streamLog) partitions() int32                   { return 1 }
func (l *streamLog) incarnation() incarnation            { return incarnation{} }
func (l *streamLog) logID(_ incarnation, _ int32) string { return l.stream.Name }
func (l *streamLog) lag(_ int32) int64                   { return 0 }

func (l *streamLog) starts(_ context.Context, _ incarnation, _ func(n int32) epoch.Origin, _ consumer.StartPolicy,
	_ func(ctx context.Context, n int32) (epoch.Offset, bool, error)) ([]epoch.Start, error) {
	return nil, errNotWritten
}

func (l *streamLog) read(_ context.Context, _ incarnation, _ epoch.Partition, _ epoch.Fence) iter.Seq2[[]consumer.Message, error] {
	return func(yield func([]consumer.Message, error) bool) { yield(nil, errNotWritten) }
}
