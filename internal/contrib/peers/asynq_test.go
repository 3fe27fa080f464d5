package peers

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
)

func (p *pod) asynqRedis() asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: p.Redis, DB: p.RedisDB}
}

// runAsynqScheduler is the process that enqueues the tasks, of which asynq wants one. A task is not
// enqueued while another one waits or runs.
func runAsynqScheduler(ctx context.Context, p *pod) error {
	s := asynq.NewScheduler(p.asynqRedis(), nil)
	if _, err := s.Register("@every 3s", asynq.NewTask("invoices", nil), asynq.Unique(10*time.Minute)); err != nil {
		return err
	}
	if err := s.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	s.Shutdown()
	return nil
}

func runAsynq(ctx context.Context, p *pod) error {
	return p.asynq(ctx, func(string) check { return nil })
}

func runAsynqKey(ctx context.Context, p *pod) error { return p.asynq(ctx, once) }

func (p *pod) asynq(ctx context.Context, check func(id string) check) error {
	server := asynq.NewServer(p.asynqRedis(), asynq.Config{
		Concurrency:    4,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("invoices", func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		return p.job(ctx, "task "+id[:4], check(id))
	})
	if err := server.Start(mux); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}
