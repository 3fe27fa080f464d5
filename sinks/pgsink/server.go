package pgsink

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides whether another server has answered than before, which may lack what was
// committed last. Package consumer then looks at all fences.

type server struct {
	logger *slog.Logger

	mu       sync.Mutex
	last     serverID
	followed serverID      // the server whose identities were found not to be behind their rows
	replaced chan struct{} // closed when the server is, or may be, another one
}

// serverID distinguishes servers, and the restarts of one server.
type serverID struct {
	system, timeline int64 // zero if the server does not tell
	started          time.Time
}

func (id *serverID) scan(row pgx.Row) error {
	return row.Scan(&id.system, &id.timeline, &id.started)
}

func (id serverID) equal(other serverID) bool {
	return id.system == other.system && id.timeline == other.timeline && id.started.Equal(other.started)
}

func newServer(l *slog.Logger) server {
	return server{logger: l, replaced: make(chan struct{})}
}

// Replaced implements [epoch.Replaceable]. The channel is closed when a connection is lost, because the
// next one may lead to another server, and when another server answers, even behind a pooler that
// kept the connection.
func (s *Sink) Replaced() <-chan struct{} {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return s.server.replaced
}

func (v *server) lost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.signal()
}

func (v *server) answeredBy(ctx context.Context, now serverID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := v.last
	v.last = now
	if was == (serverID{}) || was.equal(now) {
		return
	}
	v.signal()
	if was.system == now.system && was.timeline == now.timeline {
		v.logger.InfoContext(ctx, "pgsink: the server was restarted", "started", now.started)
		return
	}
	v.logger.WarnContext(ctx, "pgsink: the server is another one than before, which may lack what was committed last; "+
		"looking at all fences", "was_system", was.system, "was_timeline", was.timeline, "system", now.system, "timeline", now.timeline)
}

// follows returns an error while an identity of the server is behind the rows of its table. Once a
// server has answered that none is, it is not asked again.
func (s *Sink) follows(ctx context.Context, conn *pgx.Conn, now serverID) error {
	v := &s.server
	v.mu.Lock()
	done := v.followed.equal(now)
	v.mu.Unlock()
	if done || !s.numbers {
		return nil
	}
	var behind *string
	if err := conn.QueryRow(ctx, s.sql.behind).Scan(&behind); err != nil {
		return err
	}
	if behind != nil {
		return fmt.Errorf("%w: %s", epoch.ErrUnhealthy, *behind)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.followed = now
	return nil
}

func (v *server) signal() {
	close(v.replaced)
	v.replaced = make(chan struct{})
}
