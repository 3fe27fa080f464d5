package batches_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// dead is what a reader of a topic of dead letters finds: key, value and headers.
func (r *kafkaRig) dead(topic string, n int) (all []string) {
	r.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.seeds()...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	for len(all) < n && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
			text := fmt.Sprintf("%q=%q", rec.Key, rec.Value)
			if rec.Value == nil {
				text = fmt.Sprintf("%q=nil", rec.Key)
			}
			for _, h := range rec.Headers {
				text += fmt.Sprintf(" %s:%s", h.Key, h.Value)
			}
			all = append(all, text)
		})
	}
	return all
}

func TestADeadLetterIsARecordWithWhereItComesFrom(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	topic := "dead-" + r.target
	r.createTopics(1, nil, topic)
	bury, cause := r.box(&process{}).DeadLetters(topic), errors.New("no such item")
	m := epoch.Message{Partition: orders, Offset: 7, Key: []byte("k"), Value: []byte("v"), Headers: []epoch.Header{{Key: "trace", Value: []byte("1")}, {Key: "epochfence-error", Value: []byte("of before")}}}
	tombstone := epoch.Message{Partition: orders, Offset: 8, Key: []byte("k")}
	err := r.db.Do(0, func(tx *tx) error {
		return errors.Join(bury(t.Context(), tx, m, 1, cause), bury(t.Context(), tx, tombstone, 1, errors.New(strings.Repeat("x", 1<<20))))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.db.Do(0, func(tx *tx) error { // whose transaction rolls back
		return errors.Join(bury(t.Context(), tx, m, 1, cause), errors.New("of the test"))
	}); err == nil {
		t.Fatal("committed")
	}
	r.takeOver(&process{})
	r.awaitSent()
	got := r.dead(topic, 2)
	from := " epochfence-group:billing epochfence-topic:orders epochfence-partition:3 epochfence-offset:"
	if len(got) != 2 || got[0] != `"k"="v" trace:1`+from+"7 epochfence-error:no such item" || !strings.HasPrefix(got[1], `"k"=nil`+from+"8 epochfence-error:xxx") || len(got[1]) > 3000 {
		t.Errorf("dead letters: %.300q", got)
	}
}

// It neither gets lost nor keeps the others from OnFailure's own decision.
func TestADeadLetterThatMakesNoRecordSaysSo(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	bury := r.box(&process{}).DeadLetters(r.target)
	var kept []int
	decide := consumer.FailureHandler[*tx](func(ctx context.Context, tx *tx, m consumer.Message, e epoch.Epoch, cause error) error {
		err := bury(ctx, tx, m, e, cause)
		if errors.Is(err, outbox.ErrEntry) {
			kept = append(kept, len(m.Value))
			return nil
		}
		return err
	})
	for _, size := range []int{1, 999_000} {
		if err := r.db.Do(0, func(tx *tx) error {
			return decide(t.Context(), tx, epoch.Message{Partition: orders, Value: make([]byte, size)}, 1, errors.New("of the test"))
		}); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(kept, []int{999_000}) || len(r.db.Records()) != 1 {
		t.Errorf("kept %d, and %d records", kept, len(r.db.Records()))
	}
}
