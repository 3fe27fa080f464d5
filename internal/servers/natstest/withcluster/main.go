// Command withcluster runs a command with a NATS cluster of three nodes, each a process, and a real
// PostgreSQL of its own, which end with the command:
//
//	go run ./internal/servers/natstest/withcluster -kill-every 1m sh -c \
//	  'go run ./examples/payments -nats "$EPOCHFENCE_NATS" -replicas 3 -database "$EPOCHFENCE_DATABASE"'
//
// With -kill-every it kills (SIGKILL) a node in each such period, in turn, and starts it again
// after -down. Never more than one node is down, and a node is up only once it has caught up with
// all its streams. It logs the kills to standard error. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

const (
	nodes      = 3
	startLimit = 2 * time.Minute
)

func main() {
	if config := os.Getenv(nodeVariable); config != "" {
		fail(serveNode(config))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	default:
		fail(err)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	fs := flag.NewFlagSet("withcluster", flag.ContinueOnError)
	every := fs.Duration("kill-every", 0, "how often a node is killed, such as `1m`; 0: never")
	down := fs.Duration("down", 5*time.Second, "for how `long` it stays down")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 || *every < 0 || *down < 0 {
		return errors.New("usage: withcluster [-kill-every 1m] [-down 5s] command [argument …]")
	}
	start, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	dir, err := os.MkdirTemp("", "withcluster-")
	if err != nil {
		return fmt.Errorf("withcluster: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := newCluster(start, dir)
	if err != nil {
		return err
	}
	defer c.stop()
	postgres, err := pgtest.Launch(start, pgtest.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()

	cmd := exec.CommandContext(ctx, fs.Arg(0), fs.Args()[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "EPOCHFENCE_NATS="+strings.Join(c.urls(), ","), "EPOCHFENCE_DATABASE="+postgres.URL("postgres"))

	killing, spare := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() {
		if *every == 0 {
			killed <- nil
			return
		}
		killed <- c.killEach(killing, *every, *down, newReport(os.Stderr))
	}()
	err = cmd.Run()
	spare()
	return errors.Join(err, <-killed)
}
