package sourcetest_test

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to read wrongly.
var readFaults = []fault{{
	name:  "reads on from where it was, not from the fence",
	claim: "Read may be left in the middle",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner, at := t.Tenure, epoch.Fence{}
			t.read = func(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
				return func(yield func(consumer.Batch, error) bool) {
					if at.Next == 0 {
						at = from
					}
					for b, err := range inner.Read(ctx, at) {
						if err == nil {
							at.Next = b.Next
						}
						if !yield(b, err) {
							return
						}
					}
				}
			}
			return &t
		}
	},
}, {
	name:  "starts at the beginning whatever the fence says",
	claim: "a process that ends and starts again",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		from.Next, from.Mark = 0, -1
		t.Read(ctx, from)(yield)
	}),
}, {
	name:  "ends Read with messages unread",
	claim: "Read begins at the fence's position",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			if len(b.Messages) > 1 { // a source may give all at once
				to := b.Position(1)
				b.Messages, b.Next, b.Mark = b.Messages[:1], to.Offset, to.Mark
			}
			yield(b, err)
			return
		}
	}),
}, {
	name:  "says that the log ends where the batch does, with messages to come",
	claim: "a batch says where the log ends",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			b.End = b.Next
			if len(b.Messages) > 1 {
				b.End--
			}
			if !yield(b, err) {
				return
			}
		}
	}),
}, {
	name:  "says the lag as it was when it read last",
	claim: "the lag of a partition that is not read is what it is now",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner, end := t.Tenure, epoch.Offset(0)
			t.read = func(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
				return func(yield func(consumer.Batch, error) bool) {
					for b, err := range inner.Read(ctx, from) {
						end = max(end, b.End)
						if !yield(b, err) {
							return
						}
					}
				}
			}
			t.lag = func(_ context.Context, from epoch.Fence) (int64, error) { return int64(max(end-from.Next, 0)), nil }
			return &t
		}
	},
}, {
	name:  "counts what the log has lost among the lag",
	claim: "the lag is of what the log holds still",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.lag = func(ctx context.Context, from epoch.Fence) (int64, error) {
				starts, err := inner.Starts(ctx, consumer.StartLatest)
				if err != nil {
					return 0, err
				}
				return int64(starts[0].Next.Offset - from.Next), from.Check(inner.Origin())
			}
			return &t
		}
	},
}, {
	name:  "waits for more before it yields what there is",
	claim: "Read continues with what is produced",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		var queued consumer.Batch
		for b, err := range t.Read(ctx, from) {
			queued.Messages, queued.Next, queued.Mark = append(queued.Messages, b.Messages...), b.Next, b.Mark
			if len(queued.Messages) < 10 && err == nil {
				continue
			}
			if !yield(queued, err) {
				return
			}
			queued = consumer.Batch{}
		}
	}),
}, {
	name:  "ends Read with an error when its context ends",
	claim: "Read ends without an error when its context ends",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			if !yield(b, err) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(consumer.Batch{}, ctx.Err())
		}
	}),
}, {
	name:  "ends Read with an error when the partition is drained",
	claim: "Read ends without an error when the partition is drained",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			if !yield(b, err) {
				return
			}
		}
		select {
		case <-t.Draining():
			yield(consumer.Batch{}, errors.New("drained"))
		default:
		}
	}),
}, {
	name:  "skips what retention took, silently",
	claim: "a position below the log's beginning",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			var misfit *consumer.PositionError
			if errors.As(err, &misfit) && errors.Is(err, consumer.ErrOffsetExpired) {
				from.Next = misfit.Found
				t.Read(ctx, from)(yield)
				return
			}
			if !yield(b, err) {
				return
			}
		}
	}),
}, {
	name:  "is passed by though nothing was applied",
	claim: "a partition of which nothing was applied begins",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		from.Applied = true
		t.Read(ctx, from)(yield)
	}),
}, {
	name:  "looks where the log begins once, when nothing was applied yet",
	claim: "retention that passes the beginning between the first claim",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		if from.Epoch > 0 {
			from.Applied = true
		}
		t.Read(ctx, from)(yield)
	}),
}, {
	name:  "is passed by where it is not",
	claim: "a log that was trimmed to its end",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		ss, err := t.Starts(ctx, consumer.StartLatest)
		if err == nil && ss[0].Earliest.Offset == from.Next && from.Next > 0 {
			yield(consumer.Batch{}, &consumer.PositionError{Partition: from.Partition, Kind: consumer.ErrOffsetExpired, Position: from.Next, Found: from.Next + 1})
			return
		}
		t.Read(ctx, from)(yield)
	}),
}, {
	name:  "waits at a position above the log's end",
	claim: "a position above the log's end",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			if errors.Is(err, consumer.ErrTruncated) {
				select {
				case <-ctx.Done():
				case <-t.Draining():
				}
				return
			}
			if !yield(b, err) {
				return
			}
		}
	}),
}, {
	name:  "does not look at marks",
	claim: "attack: truncated log",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		from.Mark = -1
		t.Read(ctx, from)(yield)
	}),
}, {
	name:  "takes a gap for a loss",
	claim: "a gap that a delete has left",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			for _, m := range b.Messages {
				if m.Offset != from.Next {
					yield(consumer.Batch{}, &consumer.PositionError{Partition: from.Partition, Kind: consumer.ErrOffsetExpired, Position: from.Next, Found: m.Offset})
					return
				}
				from.Next++
			}
			if !yield(b, err) {
				return
			}
		}
	}),
}, {
	name:  "lets a slow reader stop the others",
	claim: "a reader that stops taking messages does not hold",
	world: func(b *broken) {
		one := make(chan struct{}, 1)
		brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
			select {
			case one <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-one }()
			t.Read(ctx, from)(yield)
		})(b)
	},
}, {
	name:  "hoards messages",
	claim: "a reader that stops taking messages does not make the source hold",
	world: func(b *broken) {
		var hoard sync.Map
		b.t.Cleanup(hoard.Clear)
		brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
			hoard.Store(t, make([]byte, 8<<20))
			t.Read(ctx, from)(yield)
		})(b)
	},
}}

func brokenRead(f func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool)) func(*broken) {
	return func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.read = func(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
				return func(yield func(consumer.Batch, error) bool) { f(ctx, inner, from, yield) }
			}
			return &t
		}
	}
}
