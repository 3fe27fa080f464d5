package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// lockTTL is 8 s by default in redsync, and 60 s in etcd's sessions.
const lockTTL = 4 * time.Second

// held is a lock that this process has.
type held struct {
	extend  func(context.Context) error // nil if its client does this
	lost    <-chan struct{}             // of a client that does this
	valid   func(context.Context) error
	release func(context.Context) error
}

// underLock runs the job at each tick for which it gets the lock. The lock is extended while the job
// runs, whose context ends when it is lost, and checked as the last thing before COMMIT.
func (p *pod) underLock(ctx context.Context, acquire func(context.Context) (*held, error)) error {
	atTicks(ctx, func(ctx context.Context, tick string) error {
		l, err := acquire(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			cancel(l.keep(ctx))
		}()
		err = p.job(ctx, tick, func(ctx context.Context, _ pgx.Tx) error { return l.valid(ctx) })
		cancel(nil)
		<-done
		return errors.Join(err, l.release(context.WithoutCancel(ctx)))
	})
	return nil
}

// keep returns when the lock is lost, or at the end of the job.
func (l *held) keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.lost:
			return errors.New("the lock is lost")
		case <-time.After(time.Second):
		}
		if l.extend == nil {
			continue
		}
		if err := l.extend(ctx); err != nil {
			return fmt.Errorf("extend the lock: %w", err)
		}
	}
}

func runRedsync(ctx context.Context, p *pod) error {
	client := redis.NewClient(&redis.Options{Addr: p.Redis, DB: p.RedisDB})
	defer func() { _ = client.Close() }()
	locks := redsync.New(goredis.NewPool(client))
	return p.underLock(ctx, func(ctx context.Context) (*held, error) {
		m := locks.NewMutex("invoices", redsync.WithExpiry(lockTTL), redsync.WithTries(1))
		is := func(do func(context.Context) (bool, error)) func(context.Context) error {
			return func(ctx context.Context) error {
				ok, err := do(ctx)
				if err == nil && !ok {
					return errors.New("not the holder")
				}
				return err
			}
		}
		valid := func(context.Context) (bool, error) { return time.Now().Before(m.Until()), nil }
		return &held{extend: is(m.ExtendContext), valid: is(valid), release: is(m.UnlockContext)}, m.LockContext(ctx)
	})
}

func runRedislock(ctx context.Context, p *pod) error {
	client := redis.NewClient(&redis.Options{Addr: p.Redis, DB: p.RedisDB})
	defer func() { _ = client.Close() }()
	locks := redislock.New(client)
	return p.underLock(ctx, func(ctx context.Context) (*held, error) {
		l, err := locks.Obtain(ctx, "invoices", lockTTL, nil)
		if err != nil {
			return nil, err
		}
		return &held{
			extend: func(ctx context.Context) error { return l.Refresh(ctx, lockTTL, nil) },
			valid: func(ctx context.Context) error {
				left, err := l.TTL(ctx)
				if err == nil && left <= 0 {
					return redislock.ErrLockNotHeld
				}
				return err
			},
			release: l.Release,
		}, nil
	})
}

// runAdvisory has the lock of a session of PostgreSQL, which lasts as long as the session.
func runAdvisory(ctx context.Context, p *pod) error {
	return p.underLock(ctx, func(ctx context.Context) (*held, error) {
		session, err := p.db.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		var got bool
		if err := session.QueryRow(ctx, `select pg_try_advisory_lock(1)`).Scan(&got); err != nil || !got {
			session.Release()
			return nil, errors.Join(err, errors.New("another session has the lock"))
		}
		return &held{
			valid: func(ctx context.Context) error { return session.Ping(ctx) },
			release: func(ctx context.Context) error {
				defer session.Release()
				_, err := session.Exec(ctx, `select pg_advisory_unlock(1)`)
				return err
			},
		}, nil
	})
}

func runEtcdMutex(ctx context.Context, p *pod) error {
	return p.underEtcd(ctx, func(ctx context.Context, s *concurrency.Session) (clientv3.Cmp, func(context.Context) error, error) {
		m := concurrency.NewMutex(s, p.ID)
		err := m.Lock(ctx)
		return m.IsOwner(), m.Unlock, err
	})
}

func runEtcdElection(ctx context.Context, p *pod) error {
	return p.underEtcd(ctx, func(ctx context.Context, s *concurrency.Session) (clientv3.Cmp, func(context.Context) error, error) {
		e := concurrency.NewElection(s, p.ID)
		err := e.Campaign(ctx, p.Name)
		return clientv3.Compare(clientv3.CreateRevision(e.Key()), "=", e.Rev()), e.Resign, err
	})
}

func (p *pod) underEtcd(ctx context.Context, lock func(context.Context, *concurrency.Session) (clientv3.Cmp, func(context.Context) error, error)) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Etcd}, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return p.underLock(ctx, func(ctx context.Context) (*held, error) {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(lockTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		owner, release, err := lock(ctx, s)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		slog.Info("has the lock")
		return &held{
			lost: s.Done(),
			valid: func(ctx context.Context) error {
				answer, err := client.Txn(ctx).If(owner).Commit()
				if err == nil && !answer.Succeeded {
					return errors.New("not the owner")
				}
				return err
			},
			release: func(ctx context.Context) error { return errors.Join(release(ctx), s.Close()) },
		}, nil
	})
}
