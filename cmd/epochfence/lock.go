package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/lease"
)

// This file has the command lock. It decides when the command begins, when it must end, and the exit
// code. lock_unix.go has the signals, and package lease who has the lock.

// Exit codes of lock itself, from 124 on as env and timeout have them.
const (
	exitLost     = 123
	exitNotHad   = 124
	exitLock     = 125
	exitNoExec   = 126
	exitNotFound = 127
	exitSignal   = 128 // and the signal's number
)

// answered is how long the store may take for the last confirmation and for the release.
const answered = 5 * time.Second

type lockFlags struct {
	group                string
	wait, ttl, killAfter time.Duration
}

func (a *app) lock() *cobra.Command {
	var f lockFlags
	c := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND [ARGUMENT …]",
		Short: "Run a command that no other process runs at the same time",
		Long: `Run a command while this process has the lock NAME, in a store of --store or in
the PostgreSQL of --database. The lock is a lease: if this process dies, others
take it after --ttl.

The command has standard input and output, and in its environment
  EPOCHFENCE_LOCK   GROUP/NAME
  EPOCHFENCE_TOKEN  a number that grows with each holder of the lock

If the lease is lost, the command and what it has started get SIGTERM, and
after --kill-after SIGKILL. On a terminal the command alone gets them. A process
that was suspended notices late, a longer --kill-after is time beside the next
one, and if epochfence is killed, the command gets SIGTERM on Linux, and nothing
more. So the lock keeps two commands apart only nearly always, unless what they
write to compares the tokens (docs/leases.md).

The exit code is the command's, 128 and more if a signal has ended it, or
  123  the lock was lost before the command ended
  124  the lock was not had within --wait, and the command did not run
  125  the store does not answer or has no tables, and the command did not run
  126, 127  the command cannot be run, or is not there`,
		Args: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("lock wants NAME -- COMMAND")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.runLock(c.Context(), f, args[0], args[1:]) },
	}
	c.Flags().StringVar(&f.group, "group", "locks", "the group of the lock (lease.Options.Group)")
	c.Flags().DurationVar(&f.wait, "wait", -1, "how long to wait for the lock; 0 tries once (default: as long as it takes)")
	c.Flags().DurationVar(&f.ttl, "ttl", 15*time.Second, "after which others take the lock of a dead process")
	c.Flags().DurationVar(&f.killAfter, "kill-after", -1, "time between SIGTERM and SIGKILL once the lease is lost (default: a tenth of --ttl, after which others may have the lock)")
	for _, name := range []string{"wait", "kill-after"} {
		c.Flags().Lookup(name).DefValue = "0s" // which pflag does not print
	}
	return c
}

// exit ends the program with a code, and without an error in silence.
type exit struct {
	code int
	error
}

func (e exit) Unwrap() error { return e.error }

func isQuiet(err error) bool {
	e, is := errors.AsType[exit](err)
	return is && e.error == nil
}

func (a *app) runLock(ctx context.Context, f lockFlags, name string, argv []string) error {
	if f.killAfter < 0 {
		f.killAfter = f.ttl / 10
	}
	path, err := exec.LookPath(argv[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return exit{exitNoExec, err}
	case err != nil:
		return exit{exitNotFound, err}
	}
	items, err := a.leases(ctx)
	if err != nil {
		return lockError(err)
	}
	m, err := lease.Open(ctx, items, lease.Options{
		Group: f.group, TTL: f.ttl, MaxStall: -1,
		Logger: slog.New(slog.NewTextHandler(a.errs, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: func(e lease.Event) {
			if _, waits := e.(lease.Waiting); waits && columns(a.errs) > 0 {
				fmt.Fprintf(a.errs, "epochfence: waiting for the lock %s\n", printable(f.group+"/"+name))
			}
		},
	})
	if err != nil {
		return lockError(a.flags.secretive(err))
	}
	defer m.Close()
	held, err := acquire(ctx, m, name, f.wait)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.out, a.errs
	cmd.Env = append(os.Environ(), "EPOCHFENCE_LOCK="+f.group+"/"+name, fmt.Sprint("EPOCHFENCE_TOKEN=", held.Generation()))
	err = underLock(ctx, held, cmd, f.killAfter)
	released, cancel := context.WithTimeout(context.WithoutCancel(ctx), answered)
	defer cancel()
	_ = held.Release(released) // else it ends with the member, or after its TTL; the log says so
	return err
}

func lockError(err error) error {
	if errors.As(err, new(usageError)) {
		return err
	}
	return exit{exitLock, fmt.Errorf("lock: %w; the command did not run", err)}
}

// leases opens the store of the lock. That of a database is its table of items.
func (a *app) leases(ctx context.Context) (cas.Store, error) {
	f := a.flags
	if f.store == "" {
		if !strings.HasPrefix(f.database, "postgres://") && !strings.HasPrefix(f.database, "postgresql://") {
			return nil, usage("where is the lock? Say it with --store or EPOCHFENCE_STORE, or with the --database of a PostgreSQL")
		}
		f.store, f.database = f.database, ""
		if f.schema != "" {
			before, separator := f.store, "?"
			if strings.Contains(before, "?") {
				separator = "&"
			}
			f.store = before + separator + "schema=" + url.QueryEscape(f.schema)
		}
	}
	s, err := openStore(ctx, f)
	if err != nil {
		return nil, f.secretive(err)
	}
	a.database = s
	return s.items, nil
}

func acquire(ctx context.Context, m *lease.Member, name string, wait time.Duration) (*lease.Held, error) {
	if wait == 0 {
		h, err := m.TryAcquire(name)
		switch {
		case errors.Is(err, lease.ErrHeld):
			return nil, exit{exitNotHad, fmt.Errorf("the lock %q is held%s; the command did not run", name, holderOf(m, name))}
		case err != nil:
			return nil, lockError(err)
		}
		return h, nil
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if wait > 0 {
		bounded, cancel = context.WithTimeout(ctx, wait)
	}
	defer cancel()
	h, err := m.Acquire(bounded, name)
	if _, has := m.Holder(name); err != nil && ctx.Err() == nil && bounded.Err() != nil && !has {
		return acquire(ctx, m, name, 0) // perhaps the store does not answer
	}
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		return nil, exit{exitNotHad, fmt.Errorf("the lock %q is held%s, and was not had in %v; the command did not run", name, holderOf(m, name), wait)}
	case err != nil:
		return nil, lockError(err)
	}
	return h, nil
}

func holderOf(m *lease.Member, name string) string {
	h, has := m.Holder(name)
	if !has || h.Owner == "" {
		return ""
	}
	return " by " + printable(h.Owner)
}

// underLock runs cmd until it ends. It ends cmd once the lease is lost, and proves at the end that it
// was not: a process that was suspended may not know yet.
func underLock(ctx context.Context, held *lease.Held, cmd *exec.Cmd, killAfter time.Duration) error {
	if err := held.Err(); err != nil { // this process was suspended since
		return lockError(err)
	}
	runtime.LockOSThread() // whose end the kernel would take for ours: see followUs
	defer runtime.UnlockOSThread()
	child, err := start(ctx, cmd)
	switch {
	case ctx.Err() != nil && err != nil:
		return lockError(err)
	case err != nil:
		return exit{exitNoExec, err}
	}
	defer child.stop()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	lost, kill := held.Context().Done(), (<-chan time.Time)(nil)
	for ended := false; !ended; {
		select {
		case err = <-done:
			ended = true
		case s := <-child.signals:
			child.pass(s)
		case <-lost:
			lost = nil
			child.terminate()
			kill = time.After(killAfter)
		case <-kill:
			child.kill()
		}
	}
	if lost == nil {
		child.kill() // what it has left running
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answered)
	defer cancel()
	switch _, unproven := held.Confirm(ctx); {
	case errors.Is(unproven, lease.ErrLost):
		return exit{exitLost, fmt.Errorf("%w before the command ended (%s): another one may have run beside it", unproven, cmd.ProcessState)}
	case unproven != nil:
		fmt.Fprintln(cmd.Stderr, "epochfence: it is not known whether the lock was held to the end:", printable(unproven.Error()))
	}
	if code := codeOf(cmd.ProcessState); code != 0 {
		return exit{code: code}
	}
	if err != nil {
		return exit{exitLock, err}
	}
	return nil
}
