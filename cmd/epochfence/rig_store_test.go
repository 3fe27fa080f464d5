package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// inStore is a bucket of NATS, in which each partition has an item of what was applied, a line for
// each message.
func inStore(t *testing.T, fails broken) *place {
	t.Helper()
	const bucket = "effects"
	server := natstest.Start(t)
	items, err := natsstore.Open(t.Context(), server.JetStream(t), natsstore.Options{Bucket: bucket})
	must(t, err)
	sink, err := cassink.Open(t.Context(), items, cassink.Options{})
	must(t, err)
	p := &place{}
	box, err := outbox.New(casoutbox.Store{}, slowly[*cassink.Tx]())
	must(t, err)
	handler := func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch) error {
		if err := p.handles(m, fails); err != nil {
			return err
		}
		if err := post(ctx, p, box, tx, m); err != nil {
			return err
		}
		_, err := tx.Update(ctx, m, fmt.Sprint("applied/", m.Partition.Number), func(old guard.State) (guard.State, []byte, error) {
			return guard.Text(fmt.Sprintf("%s%d %d\n", old.Value, m.Offset, e)), nil, nil
		})
		return err
	}
	*p = place{
		url: server.URL() + "/" + bucket, stored: true, op: sink.Operator(), alive: operate.RecordsIn[*cassink.Tx](sink).Alive,
		consume: func(ctx context.Context, s consumer.Source, o consumer.Options) error {
			o.Guarantee = epoch.PerItem
			return consume(ctx, p, s, sink, consumer.Each(handler), sink.DeadLetter, box, o)
		},
		applied: func() (as []effect) {
			for number := range int32(partitions) {
				item, err := items.Get(context.Background(), fmt.Sprint("applied/", number))
				must(t, err)
				for line := range strings.Lines(string(item.Value)) {
					a := effect{number: number}
					_, err := fmt.Sscan(line, &a.offset, &a.epoch)
					must(t, err)
					as = append(as, a)
				}
			}
			return as
		},
	}
	return p
}
