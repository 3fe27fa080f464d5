package pgsink

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// server is what is known of the server behind the pool.
type server struct {
	logger *slog.Logger

	mu       sync.Mutex
	last     serverID
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

// is notes which server has answered.
func (v *server) is(ctx context.Context, now serverID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := v.last
	v.last = now
	if was == (serverID{}) || was.system == now.system && was.timeline == now.timeline && was.started.Equal(now.started) {
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

func (v *server) signal() {
	close(v.replaced)
	v.replaced = make(chan struct{})
}
