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

// roleVariable names the role of a process that the show started.
const roleVariable = "EPOCHFENCE_SHOW_ROLE"

const (
	roleWorker  = "worker"
	roleSweeper = "sweeper"
)

// Enter must be the first call in main. In the process that the operator started, it returns at
// once. In a worker it runs work and exits. The context of work ends with SIGTERM; work's error
// goes to standard error.
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
	// A worker without its parent is useless, and may end like a crash.
	reports := os.Stdout
	os.Stdout = os.Stderr // libraries that print, such as River's logger, must not mix with the reports
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

// sweep removes the directory named on the first line of standard input once the input ends,
// together with the parent. It removes it repeatedly, because workers that end at the same moment
// may still create files.
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
