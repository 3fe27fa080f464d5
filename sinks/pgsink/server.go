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

// server is what is known of the server behind the pool.
type server struct {
	logger *slog.Logger

	mu       sync.Mutex
	last     serverID
	followed serverID      // whose identities were not behind their rows
	replaced chan struct{} // closed when it is, or may be, another one
}

// serverID is what tells servers, and the lives of one, apart.
type serverID struct {
	system, timeline int64 // zero where the server does not tell
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

// Replaced implements [epoch.Sink]. The channel is closed when a connection was
// lost, as the next one may lead to another server, and when a server turns out
// to be another one, be it behind a pooler that kept the connection.
func (s *Sink) Replaced() <-chan struct{} {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return s.server.replaced
}

// lost notes the loss of a connection.
func (v *server) lost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.signal()
}

// answeredBy notes which server has answered.
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

// follows returns an error while an identity of the server's is behind the rows of its table.
// It asks a server once that it is not.
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
