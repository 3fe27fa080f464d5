package stock

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
)

// The audit of the topic reads what is committed there, and nothing else, and finds each kind of damage.
func TestTheAuditOfTheTopicFindsEachKindOfDamage(t *testing.T) {
	const messages = 40
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(broker.ListenAddrs()...))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	record := func(sd *side, i int) *kgo.Record {
		r := reservation(testSeed, i, testItems)
		value, err := json.Marshal(entry{r.ID, r.Quantity, sd.sent[i].partition, sd.sent[i].offset, int64(1 + i/10), "w"})
		if err != nil {
			t.Fatal(err)
		}
		return &kgo.Record{Topic: published(sd.column.ID), Key: []byte(r.Item), Value: value}
	}
	// Two messages of an item, so that their order matters.
	first, second := 0, 0
	for i := 2; second == 0; i++ {
		if reservation(testSeed, i, testItems).Item == reservation(testSeed, first, testItems).Item {
			second = i
		}
	}
	for name, c := range map[string]struct {
		order  func(all []int) []int
		change func(*kgo.Record)
		commit kgo.TransactionEndTry
		found  func(show.Findings) bool
	}{
		"exact":        {nil, nil, kgo.TryCommit, show.Findings.Exact},
		"aborted":      {nil, nil, kgo.TryAbort, func(f show.Findings) bool { return f.Lost == messages && f.Effects == 0 }},
		"doubled":      {func(all []int) []int { return append(all, 39) }, nil, kgo.TryCommit, func(f show.Findings) bool { return f.Doubled == 1 && f.Lost == 0 }},
		"lost":         {func(all []int) []int { return all[1:] }, nil, kgo.TryCommit, func(f show.Findings) bool { return f.Lost == 1 }},
		"out of order": {func(all []int) []int { all[first], all[second] = second, first; return all }, nil, kgo.TryCommit, func(f show.Findings) bool { return f.Disorder > 0 && f.Once() }},
		"another item": {nil, func(r *kgo.Record) { r.Key = []byte("item-99999") }, kgo.TryCommit, func(f show.Findings) bool { return f.Alien == messages }},
		"another amount": {nil, func(r *kgo.Record) {
			r.Value = []byte(strings.Replace(string(r.Value), `"quantity":`, `"quantity":7`, 1))
		}, kgo.TryCommit, func(f show.Findings) bool { return f.Alien == messages }},
		"no JSON": {nil, func(r *kgo.Record) { r.Value = nil }, kgo.TryCommit, func(f show.Findings) bool { return f.Alien == messages }},
	} {
		t.Run(name, func(t *testing.T) {
			v := newInventory()
			v.Seed, v.brokers, v.admin = testSeed, strings.Join(broker.ListenAddrs(), ","), kadm.NewClient(client())
			id := "inventory-" + strings.ReplaceAll(name, " ", "-")
			sd := &side{inventory: v, column: &show.Column{ID: id}, items: testItems, sent: make([]place, messages)}
			if _, err := v.admin.CreateTopic(t.Context(), 2, -1, nil, published(id)); err != nil {
				t.Fatal(err)
			}
			all := make([]int, messages)
			for i := range all {
				all[i], sd.sent[i] = i, place{int32(i % 2), int64(i / 2)}
			}
			if c.order != nil {
				all = c.order(all)
			}
			writer := client(kgo.TransactionalID(id))
			if err := writer.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for _, i := range all {
				r := record(sd, i)
				if c.change != nil {
					c.change(r)
				}
				if err := writer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			if err := writer.EndTransaction(t.Context(), c.commit); err != nil {
				t.Fatal(err)
			}
			f, err := sd.audit(t.Context())
			if err != nil || !c.found(f) || f.Exact() != (name == "exact") {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
}
