package peers

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

func dialTemporal(c config) (client.Client, error) {
	return client.Dial(client.Options{HostPort: c.Temporal, Identity: c.Name, Logger: log.NewStructuredLogger(slog.Default())})
}

func setUpTemporal(ctx context.Context, c config) error {
	t, err := dialTemporal(c)
	if err != nil {
		return err
	}
	defer t.Close()
	_, err = t.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID:     c.ID,
		Spec:   client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: period}}},
		Action: &client.ScheduleWorkflowAction{ID: c.ID, Workflow: "invoices", TaskQueue: c.ID},
	})
	return err
}

// runTemporal is a workflow of one activity, which sends heartbeats. Its context ends when they are
// refused.
func runTemporal(ctx context.Context, p *pod) error {
	return p.temporalWorker(ctx, func(string) check { return nil })
}

func runTemporalKey(ctx context.Context, p *pod) error { return p.temporalWorker(ctx, once) }

func (p *pod) temporalWorker(ctx context.Context, check func(id string) check) error {
	t, err := dialTemporal(p.config)
	if err != nil {
		return err
	}
	defer t.Close()
	w := worker.New(t, p.ID, worker.Options{})
	w.RegisterWorkflowWithOptions(temporalWorkflow, workflow.RegisterOptions{Name: "invoices"})
	w.RegisterActivityWithOptions(func(ctx context.Context) error {
		done := make(chan struct{})
		defer close(done)
		go beat(ctx, done)
		info := activity.GetInfo(ctx)
		id := info.WorkflowExecution.ID
		return p.job(ctx, fmt.Sprintf("%s attempt %d", id, info.Attempt), check(id))
	}, activity.RegisterOptions{Name: "bill"})
	if err := w.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	w.Stop()
	return nil
}

func temporalWorkflow(ctx workflow.Context) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 5*time.Second + 2*long, HeartbeatTimeout: 3 * time.Second,
		RetryPolicy: &sdk.RetryPolicy{InitialInterval: time.Second},
	}), "bill").Get(ctx, nil)
}

func beat(ctx context.Context, done chan struct{}) {
	for {
		activity.RecordHeartbeat(ctx)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-done:
			return
		}
	}
}
