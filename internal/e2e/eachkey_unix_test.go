//go:build unix

package e2e_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Three worker processes apply two partitions of 20 keys to PostgreSQL, up to 16 messages beside each other. One is
// frozen while a handler of a transaction waits and others have written, until the others have applied everything.
// Then it continues, another one is killed, and a fourth joins. Every message is applied once, each key's in order,
// under epochs that never go back.
func TestRealEachKeyFrozenAndKilled(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	led := newLedger(t, b.Addr, 2)
	db := pgtest.Start(t)
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "create table effects (id bigint generated always as identity, number int, key text, value text, epoch bigint, worker text)"); err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sent, want := map[int32]int{}, map[string][]string{}
	send := func(n int, mark bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var records []*kgo.Record
		for p := range int32(2) {
			for range n {
				i := sent[p]
				sent[p]++
				key, value := fmt.Sprint("k", i%20), fmt.Sprint(i)
				if mark && p == 0 && i%50 == 7 {
					value = marker + value
				}
				of := fmt.Sprintf("%d/%s", p, key)
				want[of] = append(want[of], value)
				records = append(records, &kgo.Record{Topic: led.topic, Partition: p, Key: []byte(key), Value: []byte(value)})
			}
		}
		if err := led.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	await := func() {
		t.Helper()
		led.until("every message to be applied", func() bool {
			for p, n := range sent {
				if f, err := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: led.group, Topic: led.topic, Number: p}); err != nil || f.Next < epoch.Offset(n) {
					return false
				}
			}
			return true
		})
	}
	start := func(name string) *process { return led.start(processSpec{Name: name, PostgreSQL: db.URL}) }
	a, c, d := start("a"), start("c"), start("d")
	send(200, false)
	await()
	send(50, true)
	frozen, others := led.firstAt(marker+" 0", a, c, d)
	frozen.signal(syscall.SIGSTOP)
	for _, o := range others {
		o.goOn()
	}
	send(200, true)
	await()
	frozen.signal(syscall.SIGCONT)
	frozen.goOn()
	send(200, true)
	others[0].signal(syscall.SIGKILL)
	late := start("late")
	late.goOn()
	send(200, true)
	await()
	others[1].end()
	send(200, true)
	await()
	frozen.end()
	late.end()

	rows, err := pool.Query(t.Context(), "select number, key, value, epoch from effects order by id")
	if err != nil {
		t.Fatal(err)
	}
	got, newest := map[string][]string{}, map[int32]int64{}
	var (
		number     int32
		key, value string
		e          int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&number, &key, &value, &e}, func() error {
		of := fmt.Sprintf("%d/%s", number, key)
		got[of] = append(got[of], value)
		if e < newest[number] {
			t.Errorf("partition %d: %s was applied under epoch %d, after epoch %d", number, value, e, newest[number])
		}
		newest[number] = e
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for of, values := range want {
		if fmt.Sprint(got[of]) != fmt.Sprint(values) {
			t.Errorf("%s: applied %v, want %v", of, got[of], values)
		}
	}
	t.Logf("%d keys of %d and %d messages, last epochs %v", len(got), sent[0], sent[1], newest)
}
