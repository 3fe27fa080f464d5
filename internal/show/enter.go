package show

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const (
	configVariable = "EPOCHFENCE_SHOW_WORKER" // the configuration of a process that a show has started
	httpVariable   = "EPOCHFENCE_SHOW_HTTP"   // where the parent serves the status page, or empty
)

// Enter must be the first call in main. In the process that the operator started, it returns at
// once. In a worker it runs work and exits. The context of work ends with SIGTERM; work's error
// goes to standard error.
func Enter(work func(ctx context.Context, stage *Stage) error) {
	config := os.Getenv(configVariable)
	if config == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the parent decides when workers end
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reports := os.Stdout
	os.Stdout = os.Stderr // libraries that print, such as River's logger, must not mix with the reports
	// A worker without its parent is useless, and may end like a crash.
	stage := newStage(config, os.Stdin, reports, func() { os.Exit(1) })
	if address := os.Getenv(httpVariable); address != "" {
		go serveMetrics(address, stage.Stats.Exposition())
	}
	if err := work(ctx, stage); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
