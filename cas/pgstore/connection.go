package pgstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides whether a request uses the pool or the connection beside it.

const (
	// patience is how long a request waits while all connections of the pool are in use.
	patience = 50 * time.Millisecond

	// unused is how long the connection beside the pool is kept after its last request.
	unused = time.Minute
)

var errExhausted = errors.New("all connections of the pool are in use")

// on calls f with a connection of the pool, or with one beside it: a sink on the same pool may use all
// connections for longer than a lease lasts that is to be renewed.
func (s *Store) on(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := s.acquire(ctx)
	if err == nil {
		defer conn.Release()
		return f(conn.Conn())
	}
	if !errors.Is(err, errExhausted) {
		return err
	}
	defer s.beside.done()
	if conn, err = s.beside.acquire(ctx, s.pool); err != nil && ctx.Err() == nil {
		conn, err = s.pool.Acquire(ctx) // the server may have no connection left
	}
	if err != nil {
		return err
	}
	defer conn.Release()
	return f(conn.Conn())
}

// acquire returns a connection of the pool, or errExhausted.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	look := time.AfterFunc(patience, func() {
		for ctx.Err() == nil {
			if stat := s.pool.Stat(); stat.AcquiredConns() == stat.MaxConns() {
				giveUp(errExhausted)
			}
			waits.Sleep(ctx, patience)
		}
	})
	defer look.Stop()
	conn, err := s.pool.Acquire(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errExhausted) {
		return nil, errExhausted
	}
	return conn, err
}

// beside is a connection beside a pool, with its configuration. It is open while it is used.
type beside struct {
	mu    sync.Mutex
	pool  *pgxpool.Pool // of one connection; nil if it is not open
	users int
	used  time.Time
}

// acquire returns the connection. The caller must call done at the end, also after an error.
func (b *beside) acquire(ctx context.Context, of *pgxpool.Pool) (*pgxpool.Conn, error) {
	pool, err := b.open(of)
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

func (b *beside) open(of *pgxpool.Pool) (_ *pgxpool.Pool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users++
	if b.pool == nil {
		c := of.Config()
		c.MaxConns, c.MinConns, c.MinIdleConns = 1, 0, 0
		b.pool, err = pgxpool.NewWithConfig(context.Background(), c) // connects later
	}
	return b.pool, err
}

func (b *beside) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = time.Now()
	if b.users--; b.users == 0 {
		time.AfterFunc(unused, b.closeUnused)
	}
}

func (b *beside) closeUnused() {
	b.mu.Lock()
	var closing *pgxpool.Pool
	if b.users == 0 && b.pool != nil && time.Since(b.used) >= unused {
		closing, b.pool = b.pool, nil
	}
	b.mu.Unlock()
	if closing != nil {
		closing.Close()
	}
}
