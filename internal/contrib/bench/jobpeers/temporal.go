package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
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
		Action: &client.ScheduleWorkflowAction{ID: c.ID, Workflow: "invoices", Args: []any{c}, TaskQueue: c.ID},
	})
	return err
}

// runTemporal is a workflow of one activity. In the safe form, the activity sends heartbeats, and its
// context ends when they are refused.
func runTemporal(ctx context.Context, p *pod) error {
	t, err := dialTemporal(p.config)
	if err != nil {
		return err
	}
	defer t.Close()
	w := worker.New(t, p.ID, worker.Options{})
	w.RegisterWorkflowWithOptions(invoicesWorkflow, workflow.RegisterOptions{Name: "invoices"})
	w.RegisterActivityWithOptions(p.activity, activity.RegisterOptions{Name: "bill"})
	if err := w.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	w.Stop()
	return nil
}

func invoicesWorkflow(ctx workflow.Context, c config) error {
	o := workflow.ActivityOptions{StartToCloseTimeout: 5*time.Second + 2*c.Long, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second}}
	if c.safe() {
		o.HeartbeatTimeout = 3 * time.Second
	}
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), "bill").Get(ctx, nil)
}

func (p *pod) activity(ctx context.Context) error {
	if p.safe() {
		done := make(chan struct{})
		defer close(done)
		go func() {
			for {
				activity.RecordHeartbeat(ctx)
				select {
				case <-time.After(500 * time.Millisecond):
				case <-done:
					return
				}
			}
		}()
	}
	info := activity.GetInfo(ctx)
	id := info.WorkflowExecution.ID
	return p.job(ctx, fmt.Sprintf("%s attempt %d", id[max(0, len(id)-9):], info.Attempt), id)
}
