package memsource_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var errBroken = errors.New("the handler is broken")

func TestApplyAppliesWhatWasAddedSince(t *testing.T) {
	log, sink := memsource.New("orders", 2), memsink.New()
	for _, item := range []string{"a chair", "a table"} {
		log.Append(1, item)
		if err := memsource.Apply(t.Context(), log, sink, consumer.Each(reserve)); err != nil {
			t.Fatal(err)
		}
	}
	if got := sink.List("reserved"); !slices.Equal(got, []string{"a chair", "a table"}) {
		t.Errorf("reserved %q", got)
	}
	if err := memsource.Apply(t.Context(), log, sink, consumer.Each(reserve)); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
}

func TestApplySaysWhatAHandlerAlwaysFailsWith(t *testing.T) {
	for name, failure := range map[string]error{"after its attempts": errBroken, "for good": consumer.Permanent(errBroken)} {
		log := memsource.New("orders", 1)
		log.Append(0, "a chair")
		attempts := 0
		err := memsource.Apply(t.Context(), log, memsink.New(), consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
			attempts++
			return failure
		}))
		if !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "memsource: orders is not applied: ") {
			t.Errorf("%s: %v", name, err)
		}
		if want := map[bool]int{true: 10, false: 1}[failure == errBroken]; attempts != want {
			t.Errorf("%s: %d attempts, want %d", name, attempts, want)
		}
	}
}

func TestApplySaysWhatWasStillFailingAtTheEndOfItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		log.Append(0, "a chair")
		ctx, done := context.WithTimeout(t.Context(), time.Minute)
		defer done()
		err := memsource.Apply(ctx, log, memsink.New(), consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
			return errors.Join(epoch.ErrTransient, errBroken)
		}))
		if !errors.Is(err, errBroken) {
			t.Errorf("Apply = %v, want the handler's error", err)
		}
	})
}

func TestApplyIsThroughWithWhatOnFailureTakes(t *testing.T) {
	log, sink := memsource.New("orders", 1), memsink.New()
	log.Append(0, "no such item")
	err := memsource.Apply(t.Context(), log, sink, consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
		return consumer.Permanent(errBroken)
	}).OnFailure(sink.DeadLetter))
	if dead := sink.DeadLetters(); err != nil || len(dead) != 1 {
		t.Errorf("%d dead letters, %v", len(dead), err)
	}
}
