package show

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	roleVariable    = "EPOCHFENCE_SHOW_ROLE" // set in the processes that a show has started
	metricsVariable = "EPOCHFENCE_SHOW_METRICS"
)

// Enter must be the first call in main. In the process that the operator started, it returns at
// once. In a worker it runs work and exits. The context of work ends with SIGTERM; work's error
// goes to standard error.
func Enter(work func(ctx context.Context, stage *Stage) error) {
	if os.Getenv(roleVariable) == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the parent decides when workers end
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reports := os.Stdout
	os.Stdout = os.Stderr // libraries that print, such as River's logger, must not mix with the reports
	// A worker without its parent is useless, and may end like a crash.
	stage, err := newStage(os.Stdin, reports, func() { os.Exit(1) })
	if err == nil {
		go serveMetrics(os.Getenv(metricsVariable), stage)
		err = work(ctx, stage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveMetrics(address string, stage *Stage) {
	if address == "" {
		return
	}
	s := &http.Server{Addr: address, Handler: stage.Stats.Exposition(), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, "metrics:", s.ListenAndServe())
}
