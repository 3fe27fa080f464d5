//go:build unix

package consumer_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const frozenEnv = "EPOCHFENCE_TEST_FROZEN"

// A process is frozen in the middle of a message, for longer than the message may
// take: neither is the handler to blame for it, nor the message.
func TestAfterAThawNobodyIsBlamed(t *testing.T) {
	if os.Getenv(frozenEnv) != "" {
		frozenProcess(t)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestAfterAThawNobodyIsBlamed$", "-test.v")
	cmd.Env = append(os.Environ(), frozenEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		said = append(said, lines.Text())
		if lines.Text() == "in the handler" {
			<-time.After(5 * time.Second) // while nothing of the other process runs
			go func() {
				// Again and again: it may not have come to its stop yet.
				for cmd.Process.Signal(syscall.SIGCONT) == nil {
					<-time.After(100 * time.Millisecond)
				}
			}()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; it said:\n%s", err, strings.Join(said, "\n"))
	}
	for _, line := range said {
		if strings.Contains(line, "long after its context was cancelled") {
			t.Errorf("the handler was blamed for a freeze: %s", line)
		}
	}
}

func frozenProcess(t *testing.T) {
	log, sink := memsource.New("orders", 1), memsink.New()
	log.Append(0, "a", "b")
	var frozen atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- consumer.Run(ctx, log.Member("a"), sink, consumer.Each(func(ctx context.Context, tx *memsink.Tx, m consumer.Message, e epoch.Epoch) error {
			if !frozen.Swap(true) {
				fmt.Println("in the handler")
				if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil { // by itself: its parent may come late
					return err
				}
				<-ctx.Done() // and returns then
				<-time.After(50 * time.Millisecond)
				return ctx.Err()
			}
			tx.Append("seen", string(m.Value))
			return nil
		}).OnFailure(sink.DeadLetter), consumer.Options{
			MaxBatch: 1, MaxAttempts: 1, BatchTimeout: 3 * time.Second,
			Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		})
	}()
	<-log.UntilApplied(ctx).Done()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if seen, dead := sink.List("seen"), sink.DeadLetters(); len(seen) != 2 || len(dead) > 0 {
		t.Errorf("applied %v, dead letters %v", seen, dead)
	}
}
