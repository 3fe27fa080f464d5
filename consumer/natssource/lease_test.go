package natssource

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/natstest"
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

func testBucket(t testing.TB, js jetstream.JetStream, ttl time.Duration) *bucket {
	t.Helper()
	b := newBucket(js, "leases", ttl, slog.New(slog.DiscardHandler))
	if err := b.ensure(inTime(t), 1); err != nil {
		t.Fatal(err)
	}
	return b
}

const testKey = "g.lease.orders.0"

// testLease returns a key with a TTL and a nonce of its own, as a registration has, and its value.
func testLease(b *bucket) (*heldKey, func() []byte) {
	l := newHeldKey(b, testKey, b.ttl)
	return l, func() []byte { return record{Member: "m", Nonce: l.nonce}.json() }
}

func acquire(t testing.TB, b *bucket, last revision) (*heldKey, func() []byte) {
	t.Helper()
	l, value := testLease(b)
	if err := answered(func() error { return second(l.acquire(inTime(t), last, value())) }); err != nil {
		t.Fatalf("acquire after %d: %v", last, err)
	}
	return l, value
}

func renew(t testing.TB, l *heldKey, value func() []byte) revision {
	t.Helper()
	var rev revision
	err := answered(func() (err error) { rev, err = l.renew(inTime(t), value); return err })
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	return rev
}

func look(t testing.TB, b *bucket) entry {
	t.Helper()
	e, err := b.get(inTime(t), testKey)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestARenewedLeaseOutlivesItsTTLAndItsNumberGrows(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Second)
	l, value := acquire(t, b, 0)
	began, renewed, last := time.Now(), time.Now(), l.rev
	eventually(t, "three TTLs have passed", func() bool {
		before := renewed
		renewed = time.Now()
		// The machine may stall for as long as it likes.
		switch rev, err := l.renew(inTime(t), value); {
		case errors.Is(err, context.DeadlineExceeded) && time.Since(renewed) > b.ttl/6: // it stalls: ask again
		case errors.Is(err, consumer.ErrLost) && time.Since(before) > b.ttl/2: // it has stalled: from the start
			l, value = acquire(t, b, look(t, b).rev)
			began, last = time.Now(), l.rev
		case err != nil:
			t.Fatalf("renew: %v", err)
		case rev <= last:
			t.Fatalf("revision %d after %d", rev, last)
		default:
			last = rev
		}
		return time.Since(began) > 3*b.ttl
	})
	if e := look(t, b); e.rev != last && time.Since(renewed) < b.ttl/2 {
		t.Errorf("the key holds %+v, want a value at %d", e, last)
	}
	if left := l.left(); left > term(b.ttl) || left <= 0 && time.Since(renewed) < term(b.ttl) {
		t.Errorf("%v left of a lease just renewed", left)
	}
}

func TestALeaseThatIsNotRenewedRunsOutAndIsTakenOverByASwapOfItsMarker(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Second)
	l, value := acquire(t, b, 0)
	eventually(t, "the lease has run out", func() bool { return !look(t, b).live })
	if l.left() > 0 {
		t.Error("the bucket let the lease run out before our own clock did")
	}
	marker := look(t, b)
	if !marker.expired || marker.rev <= l.rev {
		t.Fatalf("the server left %+v", marker)
	}
	if err := answered(func() error { return second(l.renew(inTime(t), value)) }); !errors.Is(err, consumer.ErrLost) {
		t.Errorf("renew after it ran out: %v, want ErrLost", err)
	}
	if next, _ := acquire(t, b, marker.rev); next.rev <= marker.rev {
		t.Errorf("number %d after %d", next.rev, marker.rev)
	}
}

func TestAReleasedLeaseIsTakenOverByASwapOfItsMarker(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Minute)
	l, value := acquire(t, b, 0)
	rev, err := l.release(inTime(t))
	if err != nil {
		t.Fatal(err)
	}
	if e := look(t, b); e.live || e.expired || e.rev != rev {
		t.Errorf("the key holds %+v, want our marker at %d", e, rev)
	}
	acquire(t, b, rev)
	if _, err := l.renew(inTime(t), value); err == nil {
		t.Error("what was released is renewed")
	}
}

func TestALeaseOfAnotherIsNeverTaken(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Minute)
	first, value := acquire(t, b, 0)
	renew(t, first, value)
	held := look(t, b)
	for _, last := range []revision{0, 1, held.rev + 1} {
		l, v := testLease(b)
		now, err := l.acquire(inTime(t), last, v())
		if !errors.Is(err, errSwapped) {
			t.Errorf("acquire after %d: %v, want errSwapped", last, err)
		}
		if !now.live || now.rev != held.rev {
			t.Errorf("acquire after %d says that the key holds %+v, it holds %+v", last, now, held)
		}
	}
	renew(t, first, value)
}

func TestOfManyThatTakeALeaseAtOnceOneGetsIt(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Minute)
	got := make(chan error)
	const many = 20
	for range many {
		go func() {
			l, value := testLease(b)
			_, err := l.acquire(inTime(t), 0, value())
			got <- err
		}()
	}
	winners := 0
	for range many {
		if err := <-got; err == nil {
			winners++
		} else if !errors.Is(err, errSwapped) {
			t.Error(err)
		}
	}
	if winners != 1 {
		t.Errorf("%d have the lease", winners)
	}
}

func TestARenewalWhoseAnswerWasLostIsAdopted(t *testing.T) {
	t.Parallel()
	s, wires := natstest.Start(t), newLink()
	b := testBucket(t, wires.connect(t, s), time.Minute)
	l, value := acquire(t, b, 0)
	before, deadline := l.rev, l.deadline

	wires.hold(false, true)
	other := testBucket(t, s.JetStream(t), time.Minute)
	ctx, cancel := context.WithCancel(inTime(t))
	go func() {
		eventually(t, "the renewal has landed", func() bool { return look(t, other).rev > before })
		cancel()
	}()
	if _, err := l.renew(ctx, value); err == nil || errors.Is(err, consumer.ErrLost) {
		t.Fatalf("renew without an answer: %v; want an error that is not ErrLost", err)
	}
	wires.hold(false, false)
	landed := look(t, other).rev

	if err := l.resolve(inTime(t)); err != nil {
		t.Fatal(err)
	}
	if l.rev != landed {
		t.Errorf("revision %d, the key is at %d", l.rev, landed)
	}
	if l.deadline != deadline {
		t.Error("adopting a revision moved the deadline")
	}
	if rev := renew(t, l, value); rev <= landed {
		t.Errorf("renewed at %d, after %d", rev, landed)
	}
}

func TestARenewalThatNeverArrivedIsMadeAgain(t *testing.T) {
	t.Parallel()
	s, wires := natstest.Start(t), newLink()
	b := testBucket(t, wires.connect(t, s), time.Minute)
	l, value := acquire(t, b, 0)
	before := l.rev
	wires.hold(true, false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.renew(ctx, value); err == nil || errors.Is(err, consumer.ErrLost) {
		t.Fatalf("renew without an answer: %v; want an error that is not ErrLost", err)
	}
	wires.cut()
	wires.hold(false, false)
	eventually(t, "the lease is renewed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := l.renew(ctx, value)
		if errors.Is(err, consumer.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	if l.rev <= before {
		t.Errorf("revision %d after %d", l.rev, before)
	}
}

func TestARequestThatLandsLateIsAdoptedAndNotTakenForALoss(t *testing.T) {
	t.Parallel()
	s, wires := natstest.Start(t), newLink()
	b := testBucket(t, wires.connect(t, s), time.Minute)
	l, value := acquire(t, b, 0)
	wires.hold(true, false)
	for range 3 { // each is sent, in vain, at the same revision
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		l.inDoubt = false
		if _, err := l.renew(ctx, value); err == nil {
			t.Fatal("renewed without a connection")
		}
		cancel()
	}
	wires.hold(false, false) // all of them arrive; the first is carried out
	l.inDoubt = false        // and we know nothing of it
	if rev := renew(t, l, value); rev != look(t, b).rev {
		t.Errorf("renewed at %d, the key is at %d", rev, look(t, b).rev)
	}
}

func TestARenewalThatLandsAfterATakeoverChangesNothing(t *testing.T) {
	t.Parallel()
	s, wires := natstest.Start(t), newLink()
	b := testBucket(t, wires.connect(t, s), time.Second)
	l, value := acquire(t, b, 0)
	wires.hold(true, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.renew(ctx, value); err == nil {
		t.Fatal("renewed without a connection")
	}
	other := testBucket(t, s.JetStream(t), time.Minute)
	eventually(t, "the lease has run out", func() bool { return !look(t, other).live })
	next, nextValue := acquire(t, other, look(t, other).rev)
	wires.hold(false, false)
	if err := answered(func() error { return second(l.renew(inTime(t), value)) }); !errors.Is(err, consumer.ErrLost) {
		t.Errorf("renew of a lease that was taken over: %v, want ErrLost", err)
	}
	if now := look(t, other); now.rev != next.rev {
		t.Errorf("the key is at %d, the next holder left it at %d", now.rev, next.rev)
	}
	renew(t, next, nextValue)
}

func TestAnAcquisitionWhoseAnswerWasLostIsAdopted(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	b := testBucket(t, s.JetStream(t), time.Minute)
	l, value := testLease(b)
	// The same request landed before, as when nats.go repeats it.
	if _, err := b.swap(inTime(t), testKey, value(), 0, b.ttl); err != nil {
		t.Fatal(err)
	}
	if _, err := l.acquire(inTime(t), 0, value()); err != nil {
		t.Fatal(err)
	}
	if now := look(t, b); l.rev != now.rev || l.left() <= 0 {
		t.Errorf("the lease is at %d with %v left, the key at %d", l.rev, l.left(), now.rev)
	}
}

func TestALeaseInABucketThatIsGoneOrAnotherIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(t *testing.T, js jetstream.JetStream, l *heldKey)
	}{
		{"deleted", func(t *testing.T, js jetstream.JetStream, _ *heldKey) {
			if err := js.DeleteKeyValue(inTime(t), "leases"); err != nil {
				t.Fatal(err)
			}
		}},
		{"created again", func(t *testing.T, js jetstream.JetStream, _ *heldKey) {
			if err := js.DeleteKeyValue(inTime(t), "leases"); err != nil {
				t.Fatal(err)
			}
			testBucket(t, js, time.Minute)
		}},
		{"its key deleted by somebody", func(t *testing.T, js jetstream.JetStream, _ *heldKey) {
			kv, err := js.KeyValue(inTime(t), "leases")
			if err == nil {
				err = kv.Purge(inTime(t), testKey)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"its key overwritten by somebody", func(t *testing.T, js jetstream.JetStream, _ *heldKey) {
			kv, err := js.KeyValue(inTime(t), "leases")
			if err == nil {
				_, err = kv.PutString(inTime(t), testKey, "not JSON")
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			js := natstest.Start(t).JetStream(t)
			b := testBucket(t, js, time.Minute)
			l, value := acquire(t, b, 0)
			c.change(t, js, l)
			eventually(t, "the lease is known to be lost", func() bool {
				_, err := l.renew(inTime(t), value)
				if err == nil {
					t.Fatal("the lease was renewed")
				}
				return errors.Is(err, consumer.ErrLost)
			})
			if _, err := l.release(inTime(t)); !errors.Is(err, consumer.ErrLost) {
				t.Errorf("release of a lost lease: %v", err)
			}
		})
	}
}

func TestALostAnswerLeavesTimeToRenewAgain(t *testing.T) {
	t.Parallel()
	s, wires := natstest.Start(t), newLink()
	b := testBucket(t, wires.connect(t, s), 12*time.Second)
	l, value := acquire(t, b, 0)
	wires.hold(false, true)
	if _, err := l.renew(inTime(t), value); err == nil || errors.Is(err, consumer.ErrLost) {
		t.Fatalf("renew without an answer: %v; want an error that is not ErrLost", err)
	}
	if l.left() <= 0 {
		t.Error("the lease has run out while one request was waited for")
	}
	wires.hold(false, false)
	renew(t, l, value)
}

func TestTwoRequestsOfOneLeaseDoNotOvertakeEachOther(t *testing.T) {
	t.Parallel()
	b := testBucket(t, natstest.Start(t).JetStream(t), time.Minute)
	l, value := acquire(t, b, 0)
	done := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 50 {
				if _, e := l.renew(inTime(t), value); e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if now := look(t, b); now.rev != l.rev {
		t.Errorf("the lease is at %d, the key at %d", l.rev, now.rev)
	}
}

// Two revisions of two buckets look the same. The swap then lets the first that
// renews have the key, and the other hears of it; in between, the sink's claims
// decide, as they do whenever two believe to be owners.
func TestOfTwoHoldersAtOneRevisionAfterABucketWasCreatedAgainOneKeepsTheLease(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	b := testBucket(t, js, time.Minute)
	old, oldValue := acquire(t, b, 0)
	if err := js.DeleteKeyValue(inTime(t), "leases"); err != nil {
		t.Fatal(err)
	}
	next, nextValue := acquire(t, testBucket(t, js, time.Minute), 0)
	if old.rev != next.rev {
		t.Fatalf("the revisions differ: %d and %d", old.rev, next.rev)
	}
	renew(t, old, oldValue)
	if _, err := next.renew(inTime(t), nextValue); !errors.Is(err, consumer.ErrLost) {
		t.Errorf("renew by the other: %v, want ErrLost", err)
	}
	renew(t, old, oldValue)
}

// An acquisition whose answer was lost, or a release that failed, leaves a lease that names
// us: others see that a live member has it, so that nobody but us can take it.
func TestALeaseOfOursThatNoTenureKnowsIsTakenAgain(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	a := r.start("a")
	first := a.granted(0)
	orphan, now := r.lease(0)
	orphan.Nonce = "of a request whose answer was lost"
	must(t, second(r.bucket().swap(inTime(t), newKeys("billing").lease(streamPartition{"orders", 0}), orphan.json(), now.rev, 0)))
	eventually(t, "it has the partition again, under another lease", func() bool {
		held, e := r.lease(0)
		gs := a.holding()
		return e.live && held.Member == orphan.Member && held.Nonce != orphan.Nonce && len(gs) == 1 && gs[0] != first
	})
}
