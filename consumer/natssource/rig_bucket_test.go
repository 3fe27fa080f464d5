package natssource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
)

// patience bounds everything that a test waits for.
const patience = 90 * time.Second

func inTime(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// inASecond is for what will not be answered.
func inASecond(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until done says true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx := inTime(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// answered asks again where the machine has stalled for longer than one request may take.
func answered(ask func() error) error {
	for limit := time.Now().Add(patience); ; {
		if err := ask(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, consumer.ErrLost) || time.Now().After(limit) {
			return err
		}
	}
}

// bucket is the bucket of the leases, as the nats command sees it.
type bucket struct {
	js   jetstream.JetStream
	name string
}

// entry is what a key holds. It is not live after a deletion, and rev is 0 if there is no such key.
type entry struct {
	rev   uint64
	live  bool
	value []byte
}

func (b bucket) create(ctx context.Context, replicas int) error {
	_, err := b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: b.name, LimitMarkerTTL: time.Minute, Replicas: replicas})
	if errors.Is(err, jetstream.ErrBucketExists) {
		return nil
	}
	return err
}

func (b bucket) get(ctx context.Context, key string) (entry, error) {
	kv, err := b.js.KeyValue(ctx, b.name)
	if err != nil {
		return entry{}, err
	}
	e, err := kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		return entry{}, nil
	case err != nil:
		return entry{}, err
	}
	return entry{e.Revision(), true, e.Value()}, nil
}

// write replaces a value, as anybody with a client can.
func (b bucket) write(ctx context.Context, key string, value []byte) (uint64, error) {
	kv, err := b.js.KeyValue(ctx, b.name)
	if err != nil {
		return 0, err
	}
	return kv.Put(ctx, key, value)
}

func (b bucket) remove(ctx context.Context, key string) error {
	kv, err := b.js.KeyValue(ctx, b.name)
	if err != nil {
		return err
	}
	return kv.Delete(ctx, key)
}

// memberKey is the key of a member's registration.
func memberKey(id string) string { return "billing.lease.member." + id }

func leaseKey(n int32) string { return fmt.Sprintf("billing.lease.resource.orders.%d", n) }

// id is that of the member's first registration.
func (m *testMember) id() string {
	owner := m.source.member.Owner()
	return owner[strings.LastIndex(owner, "/")+1:]
}

// record is the value of a lease's key.
type record struct {
	Owner      string `json:"owner,omitempty"`
	Member     string `json:"member,omitempty"`
	Nonce      string `json:"nonce,omitempty"`
	Generation int64  `json:"generation"`
}

func parseRecord(t testing.TB, value []byte) record {
	t.Helper()
	var r record
	if err := json.Unmarshal(value, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// bucket is the bucket of the leases, seen by the test.
func (r *groupRig) bucket() bucket { return bucket{r.js, "leases"} }

// lease is what is under the key of a partition. Its entry is live while somebody has the lease.
func (r *groupRig) lease(n int32) (record, entry) {
	r.t.Helper()
	e, err := r.bucket().get(inTime(r.t), leaseKey(n))
	if err != nil {
		r.t.Fatal(err)
	}
	var now record
	if e.live {
		now = parseRecord(r.t, e.value)
		e.live = now.Member != ""
	}
	return now, e
}

// registration returns the entry of a registration.
func (r *groupRig) registration(id string) entry {
	r.t.Helper()
	e, err := r.bucket().get(inTime(r.t), memberKey(id))
	must(r.t, err)
	return e
}

// put writes a value as anybody with a client can.
func (r *groupRig) put(key string, value []byte) {
	r.t.Helper()
	must(r.t, second(r.bucket().write(inTime(r.t), key, value)))
}
