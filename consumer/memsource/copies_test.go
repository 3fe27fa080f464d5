package memsource_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A broker has the bytes that it was sent, whatever sender and readers do to theirs.
func TestNobodysChangesToAMessageAreReadByOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		sent := consumer.Message{Key: []byte("key"), Value: []byte("value"), Headers: []consumer.Header{{Key: "h", Value: []byte("header")}}}
		log.AppendMessages(0, sent)
		scribble(sent)
		for _, group := range []string{"first", "second"} {
			g, sink := log.Group(group), memsink.New()
			handle := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
				tx.Append("read", fmt.Sprintf("%s %s %s", m.Key, m.Value, m.Headers[0].Value))
				scribble(m)
				return nil
			}
			if err := consumer.Run(g.UntilApplied(t.Context()), g.Member("a"), sink, consumer.Each(handle), quiet); err != nil {
				t.Fatal(err)
			}
			if got := sink.List("read"); len(got) != 1 || got[0] != "key value header" {
				t.Errorf("group %s reads %q", group, got)
			}
		}
	})
}

func scribble(m consumer.Message) {
	for _, b := range [][]byte{m.Key, m.Value, m.Headers[0].Value} {
		b[0] = '!'
	}
	m.Headers[0].Key = "!"
}
