package show

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// roleVariable tells a process that the show started what it is.
const roleVariable = "EPOCHFENCE_SHOW_ROLE"

const (
	roleWorker  = "worker"
	roleSweeper = "sweeper"
)

// Enter must be called first in main. In the process that an operator started it
// returns at once. In a worker it runs work, whose context ends with SIGTERM,
// and exits; work's error goes to standard error.
func Enter(work func(ctx context.Context, stage *Stage) error) {
	switch os.Getenv(roleVariable) {
	case roleWorker:
		os.Exit(worker(work))
	case roleSweeper:
		os.Exit(sweep())
	}
}

func worker(work func(context.Context, *Stage) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// Without its parent a worker is of no use to anyone, and ending like a
	// crash is safe.
	reports := os.Stdout
	os.Stdout = os.Stderr // a library that prints, as River's logger does, must not spoil the reports
	stage, err := newStage(os.Stdin, reports, func() { os.Exit(1) })
	if err == nil {
		err = work(ctx, stage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// sweep removes the directory named on the first line of standard input once
// that ends, which it does with the parent. Workers that end at the same moment
// may still create a file, so it makes sure.
func sweep() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	in := bufio.NewReader(os.Stdin)
	dir, err := in.ReadString('\n')
	if err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, in)
	dir = dir[:len(dir)-1]
	for range 20 {
		_ = os.RemoveAll(dir)
		time.Sleep(50 * time.Millisecond)
	}
	return 0
}
