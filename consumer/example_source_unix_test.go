//go:build unix

package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// FileSource is a source of one partition: the lines of a file that others append
// to. A process has the lease while it has a lock on the file beside it. The kernel
// gives that to one process at a time, and takes it back when the process dies.
type FileSource struct{ Path string }

// Identity names the process as the leases do.
func (s *FileSource) Identity() (group, name string) {
	host, _ := os.Hostname()
	return "examples", fmt.Sprintf("%s, process %d", host, os.Getpid())
}

// Run leases the partition again whenever own has returned, until ctx ends. Everybody
// who waits is in the group.
func (s *FileSource) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	joined(nil)
	for ctx.Err() == nil {
		if err := s.lease(ctx, own); err != nil {
			return err
		}
	}
	return nil
}

// lease waits for the lease, and calls own once it has it.
func (s *FileSource) lease(ctx context.Context, own func(context.Context, consumer.Tenure)) error {
	lock, err := os.OpenFile(s.Path+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("filesource: %w", err)
	}
	defer lock.Close()
	for err = syscall.EWOULDBLOCK; errors.Is(err, syscall.EWOULDBLOCK); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return fmt.Errorf("filesource: lock: %w", err)
	}
	generation, err := countUp(lock)
	if err != nil {
		return fmt.Errorf("filesource: count the lease: %w", err)
	}
	log, err := os.Open(s.Path)
	if err != nil {
		return fmt.Errorf("filesource: %w", err)
	}
	defer log.Close()
	_, name := s.Identity()
	t := &fileTenure{path: s.Path, name: name, log: log, lock: lock, generation: generation, draining: ctx.Done()}

	// When ctx ends the partition is revoked, and a term later it is lost.
	held, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(consumer.ErrLost)
	context.AfterFunc(ctx, func() {
		time.AfterFunc(t.Term(), func() { lose(consumer.ErrLost) })
	})
	own(held, t)
	lock.Close() // gives the lease back
	if t.hung != nil {
		select {
		case <-t.hung:
		case <-ctx.Done():
		}
	}
	return nil
}

// countUp is the generation of a lease: how often the file was locked.
func countUp(lock *os.File) (int64, error) {
	var n int64
	if _, err := fmt.Fscan(lock, &n); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	_, err := lock.WriteAt(fmt.Appendf(nil, "%d\n", n+1), 0)
	return n + 1, err
}

type fileTenure struct {
	path, name string
	log, lock  *os.File
	generation int64
	draining   <-chan struct{}
	hung       <-chan struct{} // set by GiveUp
}

// Origin names the file by its inode, as another file of the name is another log.
func (t *fileTenure) Origin() epoch.Origin {
	info, err := t.log.Stat()
	if err != nil {
		panic(err) // of an open file
	}
	return epoch.Origin{
		Partition: epoch.Partition{Group: "examples", Topic: filepath.Base(t.path)},
		Log:       fmt.Sprintf("file:%d", info.Sys().(*syscall.Stat_t).Ino),
		Source:    "lock:" + t.path,
	}
}

func (t *fileTenure) Term() time.Duration { return 10 * time.Second }

func (t *fileTenure) Draining() <-chan struct{} { return t.draining }

// Starts counts in bytes.
func (t *fileTenure) Starts(_ context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	info, err := t.log.Stat()
	start := epoch.Start{
		Origin: t.Origin(), Next: epoch.Position{Mark: epoch.NoMark}, Earliest: epoch.Position{Mark: epoch.NoMark},
	}
	if err == nil && policy == consumer.StartLatest {
		start.Next.Offset, err = t.afterLastLine(info.Size())
	}
	return []epoch.Start{start}, err
}

// afterLastLine leaves out a line that somebody is still writing.
func (t *fileTenure) afterLastLine(size int64) (epoch.Offset, error) {
	for last := make([]byte, 1); size > 0; size-- {
		if _, err := t.log.ReadAt(last, size-1); err != nil || last[0] == '\n' {
			return epoch.Offset(size), err
		}
	}
	return 0, nil
}

// Committed has nothing to say: no other kind of consumer reads the file.
func (t *fileTenure) Committed(context.Context) (epoch.Position, bool, error) {
	return epoch.Position{}, false, nil
}

// Confirm looks whether our lock is still on the file that others look at.
func (t *fileTenure) Confirm(context.Context, epoch.Fence) (epoch.Lease, error) {
	ours, err := t.lock.Stat()
	if errors.Is(err, os.ErrClosed) {
		return epoch.Lease{}, fmt.Errorf("filesource: %w: it was given back", consumer.ErrLost)
	} else if err != nil {
		return epoch.Lease{}, fmt.Errorf("filesource: confirm: %w", err)
	}
	now, err := os.Stat(t.path + ".lock")
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(ours, now) {
		return epoch.Lease{}, fmt.Errorf("filesource: %w: the lock file was replaced", consumer.ErrLost)
	} else if err != nil {
		return epoch.Lease{}, fmt.Errorf("filesource: confirm: %w", err)
	}
	return epoch.Lease{Origin: t.Origin(), Generation: t.generation, Owner: t.name}, nil
}

// Read yields the lines from the position on. The offset of a line is that of its
// last byte, so that the position after it is where the next one begins.
func (t *fileTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		at := from.Next
		for {
			batch, err := t.batch(from.Partition, at)
			if err != nil {
				yield(consumer.Batch{}, err)
				return
			}
			if len(batch.Messages) > 0 && !yield(batch, nil) {
				return
			}
			at = batch.Next
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.draining:
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

// batch reads the whole lines that there are.
func (t *fileTenure) batch(p epoch.Partition, at epoch.Offset) (consumer.Batch, error) {
	info, err := t.log.Stat()
	if err != nil {
		return consumer.Batch{}, fmt.Errorf("filesource: read: %w", err)
	}
	if end := epoch.Offset(info.Size()); at > end {
		return consumer.Batch{}, &consumer.PositionError{Partition: p, Kind: consumer.ErrTruncated, Position: at, Found: end}
	}
	buf := make([]byte, 64<<10) // the longest line
	n, err := t.log.ReadAt(buf, int64(at))
	if err != nil && !errors.Is(err, io.EOF) {
		return consumer.Batch{}, fmt.Errorf("filesource: read: %w", err)
	}
	b := consumer.Batch{Next: at, Mark: epoch.NoMark}
	for line := range bytes.Lines(buf[:n]) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // somebody is still writing it
		}
		b.Next += epoch.Offset(len(line))
		b.Messages = append(b.Messages, consumer.Message{Partition: p, Offset: b.Next - 1, Mark: b.Mark, Value: bytes.TrimSpace(line)})
	}
	return b, nil
}

// Lag counts the lines, which are not many.
func (t *fileTenure) Lag(_ context.Context, from epoch.Fence) (int64, error) {
	var lines int64
	for at := from.Next; ; {
		batch, err := t.batch(from.Partition, at)
		if err != nil || len(batch.Messages) == 0 {
			return lines, err
		}
		lines += int64(len(batch.Messages))
		at = batch.Next
	}
}

// Mirror does nothing, as nobody looks for the position beside the file.
func (t *fileTenure) Mirror(epoch.Fence) {}

// GiveUp lets the source wait for the call that hangs, once it has given the lease back.
func (t *fileTenure) GiveUp(returned <-chan struct{}) { t.hung = returned }

// A source of one's own: the lines of a file.
func ExampleSource() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "orders.log")
	if err := os.WriteFile(path, []byte("a chair\na table\n"), 0o644); err != nil {
		panic(err)
	}

	sink := memsink.New()
	ctx, stop := context.WithCancel(context.Background())
	reserve := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tx.Append("reserved", string(m.Value))
		return nil
	}
	err = consumer.Run(ctx, &FileSource{path}, sink, consumer.Each(reserve), consumer.Options{
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e consumer.Event) {
			if a, ok := e.(consumer.Advanced); ok && a.Messages > 0 {
				stop()
			}
		},
	})
	fmt.Println(sink.List("reserved"), err)
	// Output: [a chair a table] <nil>
}
