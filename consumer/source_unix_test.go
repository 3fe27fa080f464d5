//go:build unix

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// lines runs consumers of one file, by the source of [ExampleSource].
type lines struct {
	*testing.T
	path   string
	sink   *memsink.Sink
	events chan consumer.Event
}

func newLines(t *testing.T) *lines {
	t.Parallel()
	l := &lines{T: t, path: filepath.Join(t.TempDir(), "orders.log"), sink: memsink.New(), events: make(chan consumer.Event, 100)}
	l.write("")
	return l
}

// write replaces what is in the file, which is at no time shorter than before or afterwards: a reader would take that
// for an end that was lost.
func (l *lines) write(text string) {
	l.Helper()
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
		err = errors.Join(err, f.Truncate(int64(len(text))), f.Close())
	}
	if err != nil {
		l.Fatal(err)
	}
}

// start runs a consumer, and returns what ends it.
func (l *lines) start() (stop func()) {
	ctx, cancel := context.WithCancel(l.Context())
	done := make(chan error, 1)
	handle := func(_ context.Context, tx *memsink.Tx, m consumer.Message, e epoch.Epoch) error {
		tx.Append("lines", fmt.Sprintf("%s@%d", m.Value, e))
		return nil
	}
	go func() {
		done <- consumer.Run(ctx, &FileSource{l.path}, l.sink, consumer.Each(handle), consumer.Options{
			Logger: slog.New(slog.DiscardHandler), Observe: func(e consumer.Event) { l.events <- e },
		})
	}()
	return func() {
		l.Helper()
		cancel()
		if err := <-done; err != nil {
			l.Error(err)
		}
	}
}

func await[E consumer.Event](l *lines) E {
	l.Helper()
	for {
		select {
		case e := <-l.events:
			if e, ok := e.(E); ok {
				return e
			}
		case <-time.After(time.Minute):
			l.Fatalf("no %T within a minute", *new(E))
		}
	}
}

func TestTheExamplesSourceIsLeasedToOneAtATime(t *testing.T) {
	l := newLines(t)
	l.write("a\nb\nunfini")
	first := l.start()
	await[consumer.Advanced](l)
	second := l.start()
	first()
	if e := await[consumer.Claimed](l); e.Fence.Epoch != 2 || e.Fence.Next != 4 {
		t.Errorf("the second claimed %+v", e.Fence)
	}
	l.write("a\nb\nunfinished\n")
	await[consumer.Advanced](l)
	second()
	if got := fmt.Sprint(l.sink.List("lines")); got != "[a@1 b@1 unfinished@2]" {
		t.Errorf("applied: %s", got)
	}
}

func TestTheExamplesSourceHaltsWhereTheFileWasCutOff(t *testing.T) {
	l := newLines(t)
	l.write("a\nb\n")
	stop := l.start()
	await[consumer.Advanced](l)
	l.write("a\n")
	if e := await[consumer.Halted](l); !errors.Is(e.Err, consumer.ErrTruncated) {
		t.Errorf("halted: %v", e.Err)
	}
	stop()
}

func TestTheExamplesSourceConfirmsNothingOnceItsLockIsReplaced(t *testing.T) {
	l := newLines(t)
	ctx, cancel := context.WithCancel(t.Context())
	own := func(ctx context.Context, tenure consumer.Tenure) {
		defer cancel()
		if lease, err := tenure.Confirm(ctx, epoch.Fence{}); err != nil || lease.Generation != 1 || lease.Origin != tenure.Origin() {
			t.Errorf("Confirm = %+v, %v", lease, err)
		}
		if err := os.Remove(l.path + ".lock"); err != nil {
			t.Error(err)
		}
		if _, err := tenure.Confirm(ctx, epoch.Fence{}); !errors.Is(err, consumer.ErrLost) {
			t.Errorf("Confirm without a lock file = %v", err)
		}
		if err := os.WriteFile(l.path+".lock", nil, 0o600); err != nil {
			t.Error(err)
		}
		if _, err := tenure.Confirm(ctx, epoch.Fence{}); !errors.Is(err, consumer.ErrLost) {
			t.Errorf("Confirm beside another's lock file = %v", err)
		}
	}
	if err := (&FileSource{l.path}).Run(ctx, func(error) {}, own); err != nil {
		t.Error(err)
	}
}

func TestTheExamplesSourceLeasesAgainAfterOwnHasReturnedEarly(t *testing.T) {
	l := newLines(t)
	ctx, cancel := context.WithCancel(t.Context())
	returned, calls := make(chan struct{}), 0
	own := func(ctx context.Context, tenure consumer.Tenure) {
		lease, err := tenure.Confirm(ctx, epoch.Fence{})
		if calls++; err != nil || lease.Generation != int64(calls) {
			t.Errorf("call %d: Confirm = %+v, %v", calls, lease, err)
		}
		switch calls {
		case 1:
			tenure.GiveUp(returned)
			time.AfterFunc(50*time.Millisecond, func() { close(returned) })
		case 2:
			select {
			case <-returned:
			default:
				t.Error("granted again while the call hangs")
			}
			cancel()
		}
	}
	if err := (&FileSource{l.path}).Run(ctx, func(error) {}, own); err != nil || calls != 2 {
		t.Errorf("Run = %v after %d calls", err, calls)
	}
}
