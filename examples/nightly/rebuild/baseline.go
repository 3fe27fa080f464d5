package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/bsm/redislock"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/waits"
)

// usual is a careful form of the code that most services run: a lock in Redis with a time to live, which
// a goroutine renews, and a look at the lock before each write. There is no check where the write is
// done.
type usual struct {
	config
	objects *s3.Client
	locks   *redislock.Client
	stage   *show.Stage
}

// manifest is the object that says whether the parts are complete, and of which build. Readers of the
// baseline read the parts only between two looks at it that are equal, and say complete.
type manifest struct {
	Tick     time.Time `json:"tick"`
	Complete bool      `json:"complete"`
}

func (u *usual) run(ctx context.Context) error {
	for {
		tick := time.Now().Truncate(u.Every).Add(u.Every)
		if !waits.Sleep(ctx, time.Until(tick)) {
			return nil
		}
		for _, job := range u.Jobs {
			if err := u.tick(ctx, job, tick.UTC()); err != nil {
				slog.Warn("a build has failed", "job", job, "tick", tick, "err", err)
			}
		}
	}
}

// tick builds unless another pod does, or has. It tries until the next tick, because the other pod
// may die.
func (u *usual) tick(ctx context.Context, job string, tick time.Time) error {
	for time.Now().Before(tick.Add(u.Every)) {
		if done, err := u.isDone(ctx, job, tick); done || err != nil {
			return err
		}
		lock, err := u.locks.Obtain(ctx, u.ID+"/"+job, u.TTL, nil)
		switch {
		case err == nil:
			return u.underLock(ctx, lock, job, tick)
		case !errors.Is(err, redislock.ErrNotObtained):
			return err
		}
		if !waits.Sleep(ctx, u.TTL/10) {
			return nil
		}
	}
	return nil
}

func (u *usual) isDone(ctx context.Context, job string, tick time.Time) (done bool, err error) {
	err = u.stage.DB.QueryRowContext(ctx, `SELECT count(*) > 0 FROM builds WHERE job = ? AND tick >= ?`, job, tick.Unix()).Scan(&done)
	return done, err
}

// underLock builds with a context that ends when the lock is lost.
func (u *usual) underLock(ctx context.Context, lock *redislock.Lock, job string, tick time.Time) error {
	held, lost := context.WithCancel(ctx)
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		for waits.Sleep(held, u.TTL/3) {
			if err := lock.Refresh(held, u.TTL, nil); err != nil {
				lost()
			}
		}
	}()
	done, err := u.isDone(held, job, tick) // by the pod that had the lock before
	if !done && err == nil {
		err = u.build(held, lock, job, tick)
	}
	lost()
	<-renewing
	if releasing := lock.Release(context.WithoutCancel(ctx)); !errors.Is(releasing, redislock.ErrLockNotHeld) {
		err = errors.Join(err, releasing)
	}
	return err
}

// build writes all parts in place, and records the build. The cues are where incidents strike.
func (u *usual) build(held context.Context, lock *redislock.Lock, job string, tick time.Time) error {
	if err := u.say(held, job, manifest{Tick: tick}); err != nil {
		return err
	}
	for n := range u.Parts {
		cue := u.cue(job, tick, n)
		ctx := cue.Context(held)
		if err := u.check(held, lock); err != nil {
			return err
		}
		cue.Reach(inTheMiddle)
		if err := cue.Done(put(ctx, u.objects, partName(u.ID, job, n), part(job, tick, n))); err != nil {
			return err
		}
	}
	cue := u.cue(job, tick, u.Parts)
	ctx := cue.Context(held)
	if err := u.check(held, lock); err != nil {
		return err
	}
	cue.Reach(beforePointer)
	err := u.say(ctx, job, manifest{tick, true})
	cue.Reach(afterPointer)
	if cue.Done(err) != nil {
		return err
	}
	if err := u.check(held, lock); err != nil {
		return err
	}
	_, err = u.stage.DB.ExecContext(held, `INSERT INTO builds (job, tick, epoch) VALUES (?, ?, 0)`, job, tick.Unix())
	return err
}

// check asks Redis whether the lock is still this pod's.
func (u *usual) check(held context.Context, lock *redislock.Lock) error {
	left, err := lock.TTL(held)
	if err == nil && left <= 0 {
		err = redislock.ErrLockNotHeld
	}
	return err
}

func (u *usual) cue(job string, tick time.Time, step int) *show.Cue {
	s := u.scene(job, tick, step)
	return u.stage.Cue(s.Subject, s.Before, s.Written, s.Last)
}

func (u *usual) say(ctx context.Context, job string, m manifest) error {
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return put(ctx, u.objects, manifestName(u.ID, job), content)
}

func partName(id, job string, n int) string { return fmt.Sprintf("%s/%s/part-%d", id, job, n) }

func manifestName(id, job string) string { return fmt.Sprintf("%s/%s/manifest", id, job) }
