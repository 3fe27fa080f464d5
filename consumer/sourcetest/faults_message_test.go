package sourcetest_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to carry messages wrongly.
var messageFaults = []fault{{
	name:  "delivers a message twice",
	claim: "Read begins at the fence's position",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		if m.Offset%10 == 9 {
			return []consumer.Message{m, m}
		}
		return []consumer.Message{m}
	}),
}, {
	name:  "delivers a message twice under two offsets",
	claim: "members join, leave and die",
	world: func(b *broken) {
		eachMessage(func(m consumer.Message) []consumer.Message {
			if m.Offset == 17 {
				m.Value = []byte(strings.Replace(string(m.Value), "17", "16", 1))
			}
			return []consumer.Message{m}
		})(b)
	},
}, {
	name:  "gives messages the marks of others",
	claim: "Read begins at the fence's position",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		m.Mark++
		return []consumer.Message{m}
	}),
}, {
	name:  "skips a message",
	claim: "members join, leave and die",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		if m.Offset == 7 {
			return nil
		}
		return []consumer.Message{m}
	}),
}, {
	name:  "turns an empty key into none",
	claim: "keys, values, headers and times",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		if len(m.Key) == 0 {
			m.Key = nil
		}
		return []consumer.Message{m}
	}),
}, {
	name:  "sorts headers",
	claim: "keys, values, headers and times",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		m.Headers = slices.SortedStableFunc(slices.Values(m.Headers), func(a, b consumer.Header) int { return strings.Compare(a.Key, b.Key) })
		return []consumer.Message{m}
	}),
}, {
	name:  "keeps times to the second",
	claim: "keys, values, headers and times",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		m.Time = m.Time.Truncate(time.Second)
		return []consumer.Message{m}
	}),
}, {
	name:  "has no times",
	claim: "a message that comes without a time is given one",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		m.Time = time.Time{}
		return []consumer.Message{m}
	}),
}, {
	name:  "cuts big messages off",
	claim: "messages of nearly a megabyte",
	world: eachMessage(func(m consumer.Message) []consumer.Message {
		m.Value = m.Value[:min(len(m.Value), 512<<10)]
		return []consumer.Message{m}
	}),
}, {
	name:  "yields batches that move nothing",
	claim: "Read of an empty partition",
	world: brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		if yield(consumer.Batch{Next: from.Next, Mark: from.Mark}, nil) {
			t.Read(ctx, from)(yield)
		}
	}),
}, {
	name:  "uses a batch again while it is looked at",
	claim: "the messages of a batch stay as they are",
	alone: true,
	world: func(b *broken) {
		var yielded []consumer.Batch
		brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
			for batch, err := range t.Read(ctx, from) {
				yielded = append(yielded, batch)
				if !yield(batch, err) {
					return
				}
			}
		})(b)
		b.produce = func() {
			for _, batch := range yielded {
				batch.Messages[0].Value = []byte("overwritten")
			}
		}
	},
}}

// eachMessage breaks what Read yields, message by message.
func eachMessage(f func(m consumer.Message) []consumer.Message) func(*broken) {
	return brokenRead(func(ctx context.Context, t consumer.Tenure, from epoch.Fence, yield func(consumer.Batch, error) bool) {
		for b, err := range t.Read(ctx, from) {
			out := consumer.Batch{Next: b.Next, Mark: b.Mark}
			for _, m := range b.Messages {
				out.Messages = append(out.Messages, f(m)...)
			}
			if !yield(out, err) {
				return
			}
		}
	})
}
