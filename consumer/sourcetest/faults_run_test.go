package sourcetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to grant, drain and leave wrongly.
var runFaults = []fault{{
	name:  "is in nobody's group",
	claim: "every partition is held by exactly one live member",
	world: func(b *broken) {
		b.member = func(group, member string) (string, string) { return group + "/" + member, member }
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			in := func(o epoch.Origin) epoch.Origin {
				o.Partition.Group, _, _ = strings.Cut(o.Partition.Group, "/")
				return o
			}
			t.origin = in
			t.confirm = func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
				seen.Origin = inner.Origin()
				lease, err := inner.Confirm(ctx, seen)
				lease.Origin = in(lease.Origin)
				return lease, err
			}
			t.starts = func(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
				ss, err := inner.Starts(ctx, policy)
				for i := range ss {
					ss[i].Origin = in(ss[i].Origin)
				}
				return ss, err
			}
			return &t
		}
	},
}, {
	name:  "says that it has joined when it is granted something",
	claim: "a member that is granted nothing says",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, func(error) {}, func(ctx context.Context, t consumer.Tenure) {
				joined(nil)
				own(ctx, t)
			})
		}
	},
}, {
	name:  "says that it has joined and no more",
	claim: "a process that was cut off says",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, func(err error) {
				if err == nil {
					joined(nil)
				}
			}, own)
		}
	},
}, {
	name:  "never drains",
	claim: "a partition that is revoked goes to the next",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			t.draining = make(chan struct{})
			return &t
		}
	},
}, {
	name:  "drains by cancelling",
	claim: "Read ends without an error when the partition is drained",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				ctx, cancel := context.WithCancelCause(ctx)
				go func() {
					select {
					case <-t.Draining():
						cancel(consumer.ErrLost)
					case <-ctx.Done():
					}
				}()
				defer cancel(nil)
				own(ctx, t)
			})
		}
	},
}, {
	name:  "lets a tenure continue across a loss",
	claim: "a process that is cut off loses its partition",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				own(context.WithoutCancel(ctx), t)
			})
		}
	},
}, {
	name:  "does not say why a tenure was lost",
	claim: "a process that is cut off loses its partition",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				quiet, cancel := context.WithCancel(context.WithoutCancel(ctx))
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				own(quiet, t)
			})
		}
	},
}, {
	name:  "does not wait for own",
	claim: "a partition that is revoked goes to the next",
	alone: true,
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				go own(context.WithoutCancel(ctx), t)
				select {
				case <-t.Draining():
				case <-ctx.Done():
				}
			})
		}
	},
}, {
	name:  "calls own for one partition at a time",
	claim: "an own that does nothing does not hold another",
	world: func(b *broken) {
		one := make(chan struct{}, 1)
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				select {
				case one <- struct{}{}:
					own(ctx, t)
					<-one
				case <-t.Draining():
				case <-ctx.Done():
				}
			})
		}
	},
}, {
	name:  "ends the process when one own returns",
	claim: "an own that returns early does not disturb",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
				own(ctx, t)
				cancel()
			})
		}
	},
}, {
	name:  "returns its context's error from Run",
	claim: "a Run whose context ends returns nil",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			return errors.Join(s.Run(ctx, joined, own), ctx.Err())
		}
	},
}, {
	name:  "leaves without releasing its leases",
	claim: "a Run whose context ends returns nil, and others get its partitions before",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			linger, cancel := context.WithCancel(context.WithoutCancel(ctx))
			over, ending := make(chan struct{}), make(chan error, 1)
			go func() {
				ending <- s.Run(linger, joined, func(inner context.Context, t consumer.Tenure) {
					if ctx.Err() != nil {
						return
					}
					ctx, stop := context.WithCancelCause(inner)
					defer context.AfterFunc(linger, func() { stop(consumer.ErrLost) })()
					own(ctx, t)
					select {
					case <-over:
					case <-t.Draining():
					case <-ctx.Done():
					}
				})
			}()
			select {
			case <-ctx.Done():
				s.(*memsource.Member).Freeze()
				b.t.Cleanup(func() {
					select {
					case err := <-ending:
						b.t.Logf("Run returned %v", err) // which was judged before
					case <-time.After(time.Minute):
					}
				})
				time.AfterFunc(time.Second, func() { close(over); cancel() })
				return nil
			case err := <-ending:
				cancel()
				return err
			}
		}
	},
}, {
	name:  "waits for a topic that does not exist",
	claim: "a topic that does not exist is an error of Run",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			err := s.Run(ctx, joined, own)
			if err != nil && strings.Contains(err.Error(), "does not exist") {
				<-ctx.Done()
				return nil
			}
			return err
		}
	},
}, {
	name:  "leaves a goroutine behind",
	claim: "nothing of a source runs on",
	world: func(b *broken) {
		b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
			forever, gone := make(chan struct{}), make(chan struct{})
			go func() { <-forever; close(gone) }()
			b.t.Cleanup(func() { close(forever); <-gone })
			return s.Run(ctx, joined, own)
		}
	},
}, {
	name:  "does not take over from a static member of its name",
	claim: "a static member that starts again takes over",
	world: func(b *broken) {
		n := 0
		b.member = func(group, member string) (string, string) {
			n++
			return group, fmt.Sprint(member, n)
		}
	},
}, {
	name:  "has no term",
	claim: "a tenure says which partition it is about",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			t.term = -1
			return &t
		}
	},
}}
