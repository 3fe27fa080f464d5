package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// work is a consumer's process. A message lasts as long as its statement, so that a process
// which is frozen has its transaction open.
func work(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		pool, err := pgxpool.New(ctx, os.Getenv("EPOCHFENCE_DATABASE"))
		if err != nil {
			return err
		}
		defer pool.Close()
		sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
		if err != nil {
			return err
		}
		source, err := kafkasource.New(kafkasource.Options{Group: "billing", Topics: []string{"orders"}, Client: []kgo.Opt{
			kgo.SeedBrokers(os.Getenv("EPOCHFENCE_KAFKA")), kgo.ClientID(name),
			kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(250 * time.Millisecond), kgo.RebalanceTimeout(10 * time.Second),
		}})
		if err != nil {
			return err
		}
		handler := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
			if string(m.Value) == "poison" {
				return consumer.Permanent(errors.New("it is no order"))
			}
			_, err := tx.Exec(ctx, "insert into applied (number, message_offset, epoch) select $1, $2, $3 from pg_sleep(0.02)", m.Partition.Number, int64(m.Offset), int64(e))
			return err
		}
		return consumer.Run(ctx, source, sink, consumer.Each(handler), consumer.Options{MaxBatch: 4})
	}()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, name, err)
		return 1
	}
	return 0
}

// worker is such a process.
type worker struct {
	t    *testing.T
	cmd  *exec.Cmd
	name string
}

func (l *live) worker(name string) *worker {
	l.t.Helper()
	self, err := os.Executable()
	must(l.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "EPOCHFENCE_TEST_WORKER="+name, "EPOCHFENCE_DATABASE="+l.env["EPOCHFENCE_DATABASE"], "EPOCHFENCE_KAFKA="+l.env["EPOCHFENCE_KAFKA"])
	must(l.t, cmd.Start())
	w := &worker{l.t, cmd, name}
	l.t.Cleanup(w.kill)
	return w
}

// kill ends it at once (SIGKILL), if it has not ended before.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

func (w *worker) signal(s os.Signal) {
	w.t.Helper()
	must(w.t, w.cmd.Process.Signal(s))
}
