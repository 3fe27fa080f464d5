package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/sinks/pgsink"
)

// condition prepares the database of a row. It returns the URL for the variants, valid until end is
// called.
type condition func(ctx context.Context, s *services, plain string) (is string, end func() error, err error)

func slowDisk(_ context.Context, _ *services, plain string) (string, func() error, error) {
	return plain + "&commit_delay=5000&commit_siblings=0", func() error { return nil }, nil
}

// oldSnapshot holds a snapshot open, so that vacuum removes no row version.
func oldSnapshot(ctx context.Context, _ *services, plain string) (string, func() error, error) {
	conn, err := pgx.Connect(ctx, plain)
	if err != nil {
		return "", nil, err
	}
	if _, err := conn.Exec(ctx, "begin isolation level repeatable read; select txid_current()"); err != nil {
		return "", nil, errors.Join(err, conn.Close(ctx))
	}
	return plain, func() error { return conn.Close(context.WithoutCancel(ctx)) }, nil
}

// executeAlone connects as a role that may call the sink's functions but not read its tables.
func executeAlone(ctx context.Context, s *services, plain string) (string, func() error, error) {
	u, err := url.Parse(plain)
	if err != nil {
		return "", nil, err
	}
	const role, password = "bench_app", "bench_app"
	if _, err := s.pool.Exec(ctx, "create role "+role+" login password '"+password+"'"); err != nil {
		return "", nil, err
	}
	if err := pgsink.Grant(ctx, s.pool, role, pgsink.Options{}); err != nil {
		return "", nil, err
	}
	u.User = url.UserPassword(role, password)
	return u.String(), func() error {
		_, err := s.pool.Exec(context.WithoutCancel(ctx), "drop owned by "+role+"; drop role "+role)
		return err
	}, nil
}

// away adds a network that makes each round trip longer by trip.
func away(trip time.Duration) condition {
	return func(ctx context.Context, _ *services, plain string) (string, func() error, error) {
		u, err := url.Parse(plain)
		if err != nil {
			return "", nil, err
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		go relay(l, u.Host, trip)
		u.Host = l.Addr().String()
		return u.String(), l.Close, nil
	}
}

// relay forwards connections to to, and delays what clients send. It does not delay the answers:
// the way there has the whole delay of a round trip, because a sleep of less than a millisecond
// lasts about one.
func relay(l net.Listener, to string, delay time.Duration) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := (&net.Dialer{}).Dial("tcp", to)
		if err != nil {
			_ = near.Close()
			continue
		}
		go late(far, near, delay)
		go func() {
			defer func() { _ = near.Close() }()
			_, _ = io.Copy(near, far)
		}()
	}
}

// late copies everything to another connection, and writes each piece delay after reading it.
func late(to io.WriteCloser, from io.Reader, delay time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	under := make(chan piece, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range under {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range under { // reads must not wait
		}
	}()
	defer close(under)
	for {
		buf := make([]byte, 64<<10)
		n, err := from.Read(buf)
		if n > 0 {
			under <- piece{buf[:n], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}
