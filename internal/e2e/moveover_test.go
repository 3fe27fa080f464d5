package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

var moveoverStep = flag.Int64("moveover.step", 100, "how many messages go by between two replacements in TestMoving…; make long WHAT=moveover has 2000")

// shop is the database of a team that moves over: effects, and the table by which
// its consumers recognise a message that they have had.
type shop struct {
	*onSQLite
	caught atomic.Int64 // by that table
	sent   atomic.Int64
}

func newShop(t testing.TB) *shop {
	s := &shop{onSQLite: newSQLite(t)}
	s.exec(`CREATE TABLE had (id TEXT PRIMARY KEY) STRICT`)
	s.exec(`CREATE TABLE shipped (id TEXT NOT NULL) STRICT`)
	return s
}

type writes interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// ship is the effect of a message, unless it was had.
func (s *shop) ship(ctx context.Context, tx writes, id string) error {
	r, err := tx.ExecContext(ctx, `INSERT OR IGNORE INTO had VALUES (?)`, id)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		s.caught.Add(1)
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO shipped VALUES (?)`, id)
	return err
}

// plainly applies a batch as the old consumers do.
func (s *shop) plainly(ctx context.Context, ids []string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, id := range ids {
		if err := s.ship(ctx, tx, id); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *shop) fenced(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	return s.ship(ctx, tx, string(m.Value))
}

func (s *shop) count(query string) (n int64) {
	s.Helper()
	if err := s.db.QueryRowContext(s.Context(), query).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

// more waits until so many more messages have had their effect.
func (s *shop) more(n int64) {
	s.Helper()
	s.reaches(s.count(`SELECT count(*) FROM shipped`) + n)
}

func (s *shop) reaches(want int64) {
	s.Helper()
	limit := time.After(patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for s.count(`SELECT count(*) FROM shipped`) < want {
		select {
		case <-again.C:
		case <-limit:
			s.Fatalf("waited %v in vain for %d effects; there are %d of %d messages", patience, want, s.count(`SELECT count(*) FROM shipped`), s.sent.Load())
		}
	}
}

// load sends messages until stop is called.
func (s *shop) load(send func(id string) error) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			for range 5 {
				if err := send(fmt.Sprint("order-", s.sent.Load())); err != nil {
					ended <- err
					return
				}
				s.sent.Add(1)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("send: %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

// moveOver replaces three old consumers one by one, under load, and puts them
// back one by one.
func (s *shop) moveOver(stopSending func(), old, fenced func() (stop func())) {
	said := func(what string) {
		s.Logf("%-34s %5d sent, %5d shipped, %4d caught by the table", what, s.sent.Load(), s.count(`SELECT count(*) FROM shipped`), s.caught.Load())
	}
	var members []func()
	for range 3 {
		members = append(members, old())
	}
	s.more(*moveoverStep)
	said("three old consumers:")
	for i := range members {
		members[i]()
		members[i] = fenced()
		s.more(*moveoverStep)
		said(fmt.Sprintf("%d replaced:", i+1))
	}
	for i := range members {
		members[i]()
		members[i] = old()
		s.more(*moveoverStep)
		said(fmt.Sprintf("%d put back:", i+1))
	}
	stopSending()
	s.reaches(s.sent.Load())
	for _, stop := range members {
		stop()
	}
	said("at the end:")
	if twice := s.count(`SELECT count(*) FROM (SELECT id FROM shipped GROUP BY id HAVING count(*) > 1)`); twice > 0 {
		s.Errorf("%d messages had their effect twice", twice)
	}
	if got, want := s.count(`SELECT count(DISTINCT id) FROM shipped`), s.sent.Load(); got != want {
		s.Errorf("%d of %d messages had their effect", got, want)
	}
}

// A live group of franz-go consumers, as its documentation has them, is replaced
// process by process, and put back.
func TestMovingAKafkaGroupOverAndBackLosesAndDoublesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	c, s := newCluster(t, kfake.SeedTopics(6, topic), kfake.GroupMinSessionTimeout(time.Second)), newShop(t)
	client := append(reach(c), kgo.HeartbeatInterval(300*time.Millisecond), kgo.SessionTimeout(6*time.Second))
	producer, err := kgo.NewClient(reach(c)...)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	stop := s.load(func(id string) error {
		return producer.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Key: []byte(id), Value: []byte(id)}).FirstErr()
	})
	old := func() func() {
		var group *kgo.Client
		group, err := kgo.NewClient(append(client[:len(client):len(client)],
			kgo.ConsumerGroup("billing"), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer group.CloseAllowingRebalance()
			for ctx.Err() == nil {
				polled := group.PollRecords(ctx, 50)
				var ids []string
				polled.EachRecord(func(r *kgo.Record) { ids = append(ids, string(r.Value)) })
				if err := s.plainly(context.Background(), ids); err != nil {
					t.Errorf("an old consumer: %v", err)
					return
				}
				if len(ids) > 0 {
					_ = group.CommitRecords(context.Background(), polled.Records()...) // otherwise the table will catch them
				}
				group.AllowRebalance()
			}
		}()
		stop := sync.OnceFunc(func() { cancel(); <-ended })
		t.Cleanup(stop)
		return stop
	}
	fenced := func() func() {
		r := start(t, newSource(t, func(o *kafkasource.Options) { o.Client = client }), s.sink, consumer.Each(s.fenced))
		return r.stop
	}
	s.moveOver(stop, old, fenced)
}

// Workers that share a durable consumer are replaced process by process, and put
// back. The consumer continues delivering to those that are left: the table
// catches what both have had.
func TestMovingADurableConsumerOverAndBackLosesAndDoublesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	js, s := natstest.Start(t).JetStream(t), newShop(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	durable, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: group, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 500})
	if err != nil {
		t.Fatal(err)
	}
	stop := s.load(func(id string) error {
		_, err := js.Publish(context.Background(), fmt.Sprintf("%s.%d", topic, s.sent.Load()%4), []byte(id))
		return err
	})
	old := func() func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				batch, err := durable.FetchNoWait(50)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("an old consumer: %v", err)
					}
					return
				}
				var ids []string
				var ms []jetstream.Msg
				for m := range batch.Messages() {
					ms, ids = append(ms, m), append(ids, string(m.Data()))
				}
				if err := s.plainly(context.Background(), ids); err != nil {
					t.Errorf("an old consumer: %v", err)
					return
				}
				for _, m := range ms {
					_ = m.Ack() // otherwise the table will catch it
				}
				if len(ms) == 0 {
					select {
					case <-time.After(5 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		}()
		stop := sync.OnceFunc(func() { cancel(); <-ended })
		t.Cleanup(stop)
		return stop
	}
	fenced := func() func() {
		source, err := natssource.New(natssource.Options{
			Group: group, JetStream: js, LeaseTTL: 3 * time.Second, Logger: quiet(),
			Streams: []natssource.Stream{{Name: topic, Filters: []string{topic + ".0", topic + ".1", topic + ".2", topic + ".3"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return start(t, source, s.sink, consumer.Each(s.fenced)).stop
	}
	s.moveOver(stop, old, fenced)
	if info, err := stream.Consumer(t.Context(), group); err != nil {
		t.Error(err)
	} else if at := info.CachedInfo().AckFloor.Stream; at == 0 {
		t.Error("the durable consumer has acknowledged nothing")
	}
}
