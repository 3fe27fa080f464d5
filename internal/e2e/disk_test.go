package e2e_test

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// large are n records of 20 kB that cannot be compressed away.
func large(n int) (records []*kgo.Record, values []string) {
	for i := range n {
		v := noise(i, 20_000)
		records = append(records, &kgo.Record{Topic: topic, Value: v})
		values = append(values, string(v))
	}
	return records, values
}

// noise is the same for the same seed.
func noise(seed, n int) []byte {
	b, x := make([]byte, n), uint64(seed)+1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// wantSame is wantValues for values too large to print.
func wantSame(t testing.TB, applied []effect, want []string) {
	t.Helper()
	if len(applied) != len(want) {
		t.Errorf("%d messages were applied, want %d", len(applied), len(want))
		return
	}
	for i, e := range applied {
		if e.value != want[i] {
			t.Errorf("what was applied as number %d is not that message", i)
		}
	}
}

func TestAFullSQLiteFileIsReportedBlamesNoMessageAndNothingIsLost(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newSQLite(t)
	records, values := large(30)
	produce(t, reach(c), records...)
	d.exec(`PRAGMA max_page_count = 60`) // of 4 KiB: room for some of them
	r := start(t, newSource(t, from(reach(c))), d.sink, blameless(t, d.handle), oneAttempt)
	r.reported(soonEnough, "sqlsink: commit billing/orders/0", "no room", "nothing was committed")
	d.exec(`PRAGMA max_page_count = 1000000`)
	r.advancedTo(part(group, topic), 30)
	r.stop()
	wantSame(t, d.applied(), values)
}

func TestAFullPostgresDiskIsReportedBlamesNoMessageAndNothingIsLost(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t).granted()
	// The server's own error, from a device that is always full: a disk can be filled
	// by root alone, in TestAPostgresTablespaceThatIsFull…. An error that a trigger
	// raises under this code would be its message's.
	d.exec(`create function full_disk() returns trigger security definer language plpgsql as $$ begin
		copy (select 1) to '/dev/full';
		return new;
		end $$`)
	d.exec("create trigger full_disk before insert on effects for each row execute function full_disk()")
	produce(t, reach(c), numbered(topic, 0, 20)...)
	r := start(t, newSource(t, from(reach(c))), d.sink, blameless(t, d.handle), oneAttempt)
	r.reported(soonEnough, "No space left on device")
	d.exec("drop trigger full_disk on effects")
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

// blameless fails the test if a message is given up, which takes one attempt
// that is held against it.
func blameless[TX any](t *testing.T, handle consumer.Handler[TX]) consumer.Handlers[TX] {
	var once sync.Once
	return consumer.Each(handle).OnFailure(func(_ context.Context, _ TX, m consumer.Message, _ epoch.Epoch, cause error) error {
		once.Do(func() { t.Errorf("the message at offset %d was given up: %v", m.Offset, cause) })
		return cause
	})
}

func oneAttempt(o *consumer.Options) { o.MaxAttempts = 1 }

func TestAMessageLargerThanTheBufferIsApplied(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, topic), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "20000000"}))
	huge := bytes.Repeat(noise(1, 1<<20), 8)
	records := []*kgo.Record{{Topic: topic, Value: []byte("before")}, {Topic: topic, Value: huge}, {Topic: topic, Value: []byte("after")}}
	for _, r := range records {
		produce(t, reach(c), r) // a batch each
	}
	want := []string{"before", string(huge), "after"}
	t.Run("SQLite", func(t *testing.T) {
		d := newSQLite(t)
		r := start(t, newSource(t, small(c, "on-sqlite")), d.sink, consumer.Each(d.handle))
		r.advancedTo(part("on-sqlite", topic), 3)
		r.stop()
		wantSame(t, d.applied(), want)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		d := newPostgres(t).granted()
		r := start(t, newSource(t, small(c, "on-postgres")), d.sink, consumer.Each(d.handle))
		r.advancedTo(part("on-postgres", topic), 3)
		r.stop()
		wantSame(t, d.applied(), want)
	})
}

func TestAMessageThatTheBrokerRefusesAsTooLargeIsItsProducersError(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newSQLite(t)
	produce(t, reach(c), numbered(topic, 0, 5)...)
	cl, err := kgo.NewClient(append(reach(c), kgo.ProducerBatchMaxBytes(20<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	err = within(t, soonEnough, func(ctx context.Context) error {
		return cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: make([]byte, 2<<20)}).FirstErr()
	})
	wantError(t, err, "MESSAGE_TOO_LARGE")
	produce(t, reach(c), numbered(topic, 5, 5)...)
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 10)
	r.stop()
	wantValues(t, d.applied(), counted(10))
}
