package pgsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/reach"
)

// SQLSTATEs of a server that may soon take a connection.
var notYet = []string{
	"57P03", // cannot_connect_now: it is starting, or shutting down
	"57P01", // admin_shutdown
	"57P02", // crash_shutdown
	"53300", // too_many_connections
}

// reached waits within timeout for the server of a db, by trying what is to be
// done first.
func reached(ctx context.Context, db any, log *slog.Logger, timeout time.Duration, try func(context.Context) error) error {
	server := reach.Server{Name: "PostgreSQL" + at(db), Timeout: timeout, Log: log, Patience: func(err error) time.Duration {
		if unreached(err) {
			return timeout
		}
		return 0
	}}
	after, err := server.Wait(ctx, try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx, err)
	case unreached(err):
		return fmt.Errorf("%s was not reached within %v; does it run, and are address and port right? %w", server.Name, after, err)
	}
	return err
}

// unreached reports whether err is that of a server that cannot be spoken to now,
// and not of one that refuses us.
func unreached(err error) bool {
	var (
		pg   *pgconn.PgError
		dns  *net.DNSError
		dial *net.OpError
	)
	switch {
	case errors.As(err, &pg):
		return slices.Contains(notYet, pg.Code)
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), errors.As(err, &dns):
		return true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return true
	case errors.As(err, &dial):
		return dial.Op == "dial" && !errors.Is(err, syscall.EACCES)
	}
	return false
}

// at says where the servers of a pool are.
func at(db any) string {
	pool, ok := db.(*pgxpool.Pool)
	if !ok {
		return ""
	}
	c := pool.Config().ConnConfig
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return " at " + strings.Join(all, ", ")
}

func address(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
