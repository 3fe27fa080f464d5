package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

func TestRunReturnsWithWhatHangsWhenItIsStopped(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(1, 1)
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second})
		r.pass(time.Second / 2)
		p.stop()
		began := time.Now()
		err := <-p.done
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		var hung *consumer.HungError
		if !errors.As(err, &hung) || len(hung.Calls) != 1 || hung.Calls[0].Partition != r.partition(1) || hung.Calls[0].Offset != 0 {
			t.Fatalf("Run: %v", err)
		}
		for _, said := range []string{"orders/1", "offset 0", "epoch 1", "hang_test.go", "goroutine "} {
			if !strings.Contains(err.Error(), said) {
				t.Errorf("the error does not say %q:\n%v", said, err)
			}
		}
		h.release()
		if h.late.Load() != 1 {
			t.Error("the late write was not refused")
		}
		r.wantEffects(1)
	})
}

func TestRunReturnsWhenTooManyCallsHang(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		h := hangsOn("0/0", "1/0", "2/0")
		for n := range int32(4) {
			r.fill(n, 1)
		}
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second, MaxHung: 2})
		select {
		case err := <-p.done:
			var hung *consumer.HungError
			if !errors.As(err, &hung) || len(hung.Calls) != 3 {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run continues although more calls hang than MaxHung")
			p.stop()
		}
		h.release()
	})
}

// A drain has its bound, whatever HangTimeout is.
func TestADrainDoesNotWaitForAHandlerThatHangs(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 2)
		a := r.start("a", each(h.handle), options{BatchTimeout: time.Second, HangTimeout: time.Hour})
		r.pass(2 * time.Second)
		a.stop()
		r.pass(12 * time.Second) // the term, and a second
		select {
		case err := <-a.done:
			var hung *consumer.HungError
			if !errors.As(err, &hung) {
				t.Errorf("Run: %v", err)
			}
		default:
			t.Error("Run waits for a handler that hangs")
		}
		h.release()
	})
}

func TestReadinessFailsWhileACallHangs(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(1, 1)
		var status consumer.Status
		p := r.process("a", nil)
		o := p.watched(options{BatchTimeout: time.Second})
		o.Observe = status.Observe
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(h.handle), o) })
		r.pass(time.Hour)
		if err := status.Ready(); err == nil || !strings.Contains(err.Error(), "orders/1") || !strings.Contains(err.Error(), "hang_test.go") {
			t.Errorf("Ready = %v", err)
		}
		if calls := status.Hung(); len(calls) != 1 {
			t.Errorf("Hung = %v", calls)
		}
		h.release()
		r.pass(time.Second)
		if err := status.Ready(); err != nil {
			t.Errorf("Ready = %v after the call has returned", err)
		}
		p.end()
	})
}

func TestTheLogSaysAgainWhatHangsAndWhere(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		lines := &logged{}
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second, Logger: lines.logger()})
		r.pass(time.Hour)
		n := len(lines.lines("hang_test.go"))
		if n < 5 || n > 15 {
			t.Errorf("%d lines in an hour say where it hangs", n)
		}
		h.release()
		r.pass(time.Hour)
		if more := lines.lines("hang_test.go"); len(more) > 0 {
			t.Errorf("lines after it has returned: %v", more)
		}
		p.end()
	})
}
