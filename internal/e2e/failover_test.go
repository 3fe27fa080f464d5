package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"modernc.org/sqlite"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// lockedLog is a log that is written to from several goroutines.
type lockedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// An asynchronous standby lacks what its primary committed last. It is promoted
// while no message comes, and the group in Kafka has the position that was lost.
func TestWhatAFailoverLostIsAppliedAgainThoughNoMessageComes(t *testing.T) {
	t.Parallel()
	primary := pgtest.StartServer(t, pgtest.Options{NoFsync: true})
	standby := primary.StartStandby(t)
	d := postgresOn(t, primary.Database(t)).granted()
	c := newCluster(t, kfake.SeedTopics(1, topic), kfake.GroupMinSessionTimeout(time.Second))
	const first, lost = 1000, 400

	// What a pool is given for a cluster: both addresses, and which one it wants.
	pool := newPool(t, strings.Replace(d.url, primary.Addr(), primary.Addr()+","+standby.Addr(), 1)+"&target_session_attrs=read-write")
	var log lockedLog
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	produce(t, reach(c), numbered(topic, 0, first)...)
	r := start(t, newSource(t, soonLost(c)), sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), first)
	standby.CatchUp(t, primary)
	standby.Disconnect(t)
	produce(t, reach(c), numbered(topic, first, lost)...)
	r.advancedTo(part(group, topic), first+lost)
	readsNoFenceOf(t, standby, primary, d)

	if err := primary.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	standby.Promote(t)
	r.wentBackAndOn(first, first+lost)
	none[consumer.Stale](r)
	r.stop()
	if d.admin, err = pgx.Connect(t.Context(), standby.URL(d.db.Name)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.admin.Close(context.Background()) }()
	wantValues(t, d.applied(), counted(first+lost))
	if got := log.String(); !strings.Contains(got, "the server is another one than before") {
		t.Errorf("the log does not name the other server:\n%s", got)
	}
}

// soonLost is a source whose tenures have a short term, by which a consumer looks at the sink
// now and then, in a session that no stall of the machine outlasts.
func soonLost(c *kfake.Cluster) func(*kafkasource.Options) {
	return func(o *kafkasource.Options) {
		o.Client = reach(c)
		o.DrainTimeout = 2700 * time.Millisecond
	}
}

// wentBackAndOn waits until the sink is seen to have gone back, and then stands
// again where it was.
func (r *running) wentBackAndOn(to, was epoch.Offset) {
	r.Helper()
	r.until("the sink went back, and then on", func(events []consumer.Event) bool {
		wentBack := false
		for _, e := range events {
			switch e := e.(type) {
			case consumer.WentBack:
				wentBack = true
				if e.Was.Next != was || e.Now.Next != to {
					r.Fatalf("the sink went back from %d to %d, want %d to %d", e.Was.Next, e.Now.Next, was, to)
				}
			case consumer.Advanced:
				if wentBack && e.To == was {
					return true
				}
			}
		}
		return false
	})
}

// A backup is restored into the file while it is in use, as SQLite's own shell does.
func TestWhatARestoredSQLiteFileLacksIsAppliedAgainThoughNoMessageComes(t *testing.T) {
	t.Parallel()
	d := newSQLite(t)
	c := newCluster(t, kfake.SeedTopics(1, topic), kfake.GroupMinSessionTimeout(time.Second))
	produce(t, reach(c), numbered(topic, 0, 100)...)
	r := start(t, newSource(t, soonLost(c)), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 100)
	backup := filepath.Join(t.TempDir(), "backup.db")
	d.exec(`VACUUM INTO '` + backup + `'`)
	produce(t, reach(c), numbered(topic, 100, 40)...)
	r.advancedTo(part(group, topic), 140)

	conn, err := d.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Raw(func(conn any) error {
		b, err := conn.(interface {
			NewRestore(from string) (*sqlite.Backup, error)
		}).NewRestore(backup)
		if err != nil {
			return err
		}
		_, err = b.Step(-1)
		return errors.Join(err, b.Finish())
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	r.wentBackAndOn(100, 140)
	none[consumer.Stale](r)
	r.stop()
	wantValues(t, d.applied(), counted(140))
}

// readsNoFenceOf fails the test if a sink that finds itself on a standby, which
// lags behind, takes its fences for the truth.
func readsNoFenceOf(t *testing.T, standby, primary *pgtest.Server, d *onPostgres) {
	t.Helper()
	var onStandby atomic.Bool
	toStandby, err := pgx.ParseConfig(strings.Replace(d.url, primary.Addr(), standby.Addr(), 1))
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		t.Fatal(err)
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if onStandby.Load() {
			c.Host, c.Port = toStandby.Host, toStandby.Port
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	onStandby.Store(true)
	pool.Reset()
	_, err = epoch.FenceOf(t.Context(), sink, part(group, topic))
	wantError(t, err, "pgsink: read fence billing/orders/0", "standby")
	_, err = sink.Look(t.Context(), []epoch.Partition{part(group, topic)})
	wantError(t, err, "pgsink: read fence billing/orders/0", "standby")
}
