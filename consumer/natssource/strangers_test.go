package natssource

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// put writes a value as anybody with a client can: without a TTL.
func (r *groupRig) put(key string, value []byte) {
	r.t.Helper()
	must(r.t, second(r.bucket().write(inTime(r.t), key, value)))
}

// strange are values that are no lease and no registration.
var strange = map[string][]byte{
	"garbage":               []byte("somebody's"),
	"nothing":               {},
	"bytes":                 {0, 0xff, 0xfe, '{'},
	"null":                  []byte("null"),
	"a number":              []byte("42"),
	"a text":                []byte(`"x"`),
	"a list":                []byte("[]"),
	"half of it":            []byte(`{"owner":"a","mem`),
	"another version":       []byte(`{"version":9,"holder":{"id":"x"},"streams":[{"orders":4}]}`),
	"other types":           []byte(`{"member":5,"streams":"orders","nonce":[]}`),
	"a large one":           []byte(strings.Repeat("x", 900_000)),
	"a large one in JSON":   []byte(`{"owner":"` + strings.Repeat("x", 900_000) + `","member":"x","name":5}`),
	"a number that is none": []byte(`{"member":"a b","streams":{"orders":1e300}}`),
}

// disbelieved are the registrations that no member can have written.
var disbelieved = []string{"a million partitions", "a million streams' partitions", "less than no partitions", "all partitions that fit", "many that it does not want"}

// One member is to have both partitions, though somebody has put that into the bucket.
func TestWhatStrangersPutIntoTheBucketIdlesNoPartitionForLong(t *testing.T) {
	t.Parallel()
	type row struct {
		where, what string
		put         func(r *groupRig)
		key         string // that a line names; empty if there is nothing to say
	}
	var rows []row
	lease := leaseKey(0)
	add := func(where, what, key string, put func(r *groupRig)) { rows = append(rows, row{where, what, put, key}) }
	for what, value := range strange {
		add("lease", what, lease, func(r *groupRig) { r.put(lease, value) })
		add("registration", what, memberKey("ghost"), func(r *groupRig) {
			r.put(lease, record{Owner: "ghost", Member: "ghost", Nonce: "n"}.json())
			r.put(memberKey("ghost"), value)
		})
		for _, key := range []string{"lease.orders.00", "lease.orders.+0", "lease.orders", "lease.=6Frders.0", "lease.orders.0.0", "lease.orders.7", "other", "position.orders.x"} {
			if what == "garbage" {
				add("beside, "+key, what, "", func(r *groupRig) { r.putRaw("billing."+key, value) })
			}
		}
	}
	for what, member := range map[string]string{
		"no member": "", "a member with a blank": "a b", "all members": ">", "any member": "*", "a member with dots": "a..b", "a long member": strings.Repeat("M", 5000),
	} {
		add("lease", what, lease, func(r *groupRig) { r.put(lease, record{Owner: "o", Member: member, Nonce: "n"}.json()) })
	}
	add("lease", "a member that nobody knows", "", func(r *groupRig) { r.put(lease, record{Owner: "o", Member: "x", Nonce: "n"}.json()) })
	add("lease", "a marker of another kind", lease, func(r *groupRig) {
		m := r.bucket().message(lease, []byte("x"))
		m.Header.Set("KV-Operation", "LOCK")
		must(r.t, second(r.bucket().publish(inTime(r.t), m)))
	})
	for what, record := range map[string]string{
		"a member like others":           `{"name":"ghost","streams":{"orders":2},"nonce":"n"}`,
		"a million partitions":           `{"name":"ghost","streams":{"orders":1000000}}`,
		"a million streams' partitions":  `{"name":"ghost","streams":{"a":16000,"b":16000,"c":1000000}}`,
		"less than no partitions":        `{"name":"ghost","streams":{"orders":-1}}`,
		"all partitions that fit":        `{"name":"ghost","streams":{"orders":2147483647}}`,
		"a TTL of years":                 `{"name":"ghost","streams":{"orders":2},"ttl":9000000000000}`,
		"many that it does not want":     `{"name":"ghost","streams":{"orders":2},"declined":["` + strings.Repeat(`x","`, 200_000) + `"]}`,
		"a record that says nothing":     `{}`,
		"a name that is not for a human": `{"name":"` + strings.Repeat("x", 100_000) + `","streams":{"orders":2}}`,
	} {
		key := memberKey("ghost")
		add("registration", what, key, func(r *groupRig) {
			r.put(lease, []byte(`{"owner":"ghost","member":"ghost","nonce":"n"}`))
			r.put(key, []byte(record))
		})
	}
	for _, c := range rows {
		t.Run(c.where+"/"+c.what, func(t *testing.T) {
			t.Parallel()
			r := newGroupRig(t, 2, 3*time.Second)
			must(t, r.bucket().ensure(inTime(t), 1))
			c.put(r)
			var log said
			r.logger = log.logger()
			a := r.start("a")
			eventually(t, "a is registered", func() bool { return a.source.current() != nil })
			began := time.Now()
			a.comesTo(2, began.Add(3*r.ttl))
			for n := range int32(2) {
				a.granted(n).confirm(t, 1)
			}
			lines := log.with("key=")
			if slices.Contains(disbelieved, c.what) && len(log.with("level=ERROR", "key="+c.key, "nats kv del leases "+c.key)) != 1 {
				t.Errorf("it is not said that the registration is not believed, and what removes it:\n%.2000s", strings.Join(lines, ""))
			}
			if c.key == "" && len(lines) > 0 || c.key != "" && (len(lines) != 1 || !strings.Contains(lines[0], "key="+c.key)) {
				t.Errorf("want a line that names key %q, and no other; got %d:\n%.2000s", c.key, len(lines), strings.Join(lines, ""))
			}
		})
	}
}

// putRaw writes under a subject that may be no key.
func (r *groupRig) putRaw(key string, value []byte) {
	r.t.Helper()
	must(r.t, second(r.js.PublishMsg(inTime(r.t), &nats.Msg{Subject: "$KV.leases." + key, Data: value})))
}

// A value that changes again and again may be somebody's work: it is not taken, and that is said.
func TestAStrangeValueThatIsWrittenAgainAndAgainIsSaid(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, time.Second)
	must(t, r.bucket().ensure(inTime(t), 1))
	r.put(leaseKey(0), []byte("0"))
	var log said
	r.logger = log.logger()
	a := r.start("a")
	a.granted(1)
	for tick, n := time.NewTicker(r.ttl/4), 0; len(log.with("level=ERROR", "key="+leaseKey(0), "nats kv del leases "+leaseKey(0))) == 0; n++ {
		<-tick.C
		r.put(leaseKey(0), fmt.Append(nil, n))
		if n > 40 {
			t.Fatalf("nothing is said:\n%s", strings.Join(log.wrong(), ""))
		}
	}
	if lines := log.with("key="); len(lines) != 1 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
	a.granted(0).confirm(t, 1) // it is left alone now
}

// A value in the key of a lease that a member holds costs the tenure, and nobody else is let in at once.
func TestAStrangeValueIsLeftAloneForALeasesTerm(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 3*time.Second)
	a := r.start("a")
	g := a.granted(0)
	r.put(leaseKey(0), []byte("somebody's"))
	began := time.Now()
	_ = g.lost(t)
	a.comesTo(1, began.Add(3*r.ttl))
	if took := time.Since(began); took < r.ttl*9/10 {
		t.Errorf("it was taken after %v, with a TTL of %v", took, r.ttl)
	}
}

// The key of a registration was written anew without a TTL, and then its process died.
func TestARegistrationWithoutATTLDiesWithItsProcess(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 2*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 4)
	var log said
	r.logger = log.logger()
	b := r.start("b")
	r.shared([]*testMember{a, b}, 2, 2)
	key := a.source.current().key.key
	a.wires.hold(true, true)
	r.put(key, r.registration(a.source.current().id).value)
	began := time.Now()
	b.comesTo(4, began.Add(3*r.ttl))
	if lines := log.with("level=WARN", "key="+key); len(lines) != 1 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(log.wrong(), ""))
	}
}

// The bucket is changed under a member that runs, and says so once; then another one dies.
func TestSettingsThatABucketIsGivenUnderItsMembersDelayNoTakeover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		remedy string
	}{
		"a history":       {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, "nats stream edit KV_leases --max-msgs-per-subject=1"},
		"a maximum age":   {func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "nats stream edit KV_leases --max-age=-1"},
		"both":            {func(c *jetstream.StreamConfig) { c.MaxAge, c.MaxMsgsPerSubject = 10*time.Minute, 2 }, "nats stream edit KV_leases --max-age=-1"},
		"too little room": {func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 }, "nats stream edit KV_leases --max-msgs=-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newGroupRig(t, 2, 2*time.Second)
			a := r.start("a")
			r.shared([]*testMember{a}, 2)
			var log said
			r.logger = log.logger()
			b := r.start("b")
			r.shared([]*testMember{a, b}, 1, 1)
			r.limit(c.change)
			eventually(t, "it is said", func() bool { return len(log.with("level=ERROR", c.remedy)) > 0 })
			before := r.registration(a.source.current().id).rev
			eventually(t, "a has renewed", func() bool { return r.registration(a.source.current().id).rev > before })
			a.wires.hold(true, true)
			began := time.Now()
			b.comesTo(2, began.Add(4*r.ttl))
			if lines := slices.DeleteFunc(log.with("level=ERROR"), func(line string) bool { return strings.Contains(line, "times=") }); len(lines) != 1 {
				t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, ""))
			}
		})
	}
}

// A lease that names a member which does not serve the partition.
func TestALeaseThatNamesAMemberOfAnotherStreamIsReleased(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 2*time.Second)
	must(t, second(r.js.CreateStream(inTime(t), jetstream.StreamConfig{Name: "other", Subjects: []string{"other"}})))
	orders := r.stream
	r.stream = Stream{Name: "other"}
	b := r.start("b")
	r.shared([]*testMember{b}, 1)
	r.put(leaseKey(0), record{Owner: "b", Member: b.source.current().id, Nonce: "n"}.json())
	r.stream = orders
	a := r.start("a")
	a.comesTo(1, time.Now().Add(4*r.ttl))
}

// comesTo waits until m holds that many, in time.
func (m *testMember) comesTo(n int, limit time.Time) {
	m.rig.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(m.holding()) != n {
		if <-tick.C; time.Now().After(limit) {
			m.rig.t.Fatalf("%s holds %d in time, want %d; the TTL is %v", m.name, len(m.holding()), n, m.rig.ttl)
		}
	}
}

// Each counts by its own TTL how long others may be silent, and by theirs if that is longer.
func TestAMemberWithALongerTTLIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 2)
	r.ttl = 2 * time.Second
	b := r.start("b")
	r.shared([]*testMember{a, b}, 1, 1)
	me := a.source.current()
	before, now := r.registration(me.id).rev, entry{}
	eventually(t, "a renews, long after b's TTL, or is taken away", func() bool { now = r.registration(me.id); return now.rev != before })
	if !now.live || a.source.current() != me {
		t.Errorf("a was taken away: %v", me.err())
	}
}

func TestAPositionThatIsNoneIsSaidWithTheKeyAndReplacedOnceThePartitionIsClaimed(t *testing.T) {
	t.Parallel()
	for what, value := range strange {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newGroupRig(t, 1, 20*time.Second)
			key := newKeys("billing").position(streamPartition{"orders", 0})
			must(t, r.bucket().ensure(inTime(t), 1))
			r.put(key, value)
			var log said
			r.logger = log.logger()
			g := r.start("a").granted(0)
			_, _, err := g.Committed(inTime(t))
			if err == nil || !strings.Contains(err.Error(), "nats kv del leases "+key) {
				t.Errorf("Committed: %.500v", err)
			}
			g.confirm(t, 1) // which has not been claimed
			if _, e := r.position(key); string(e.value) != string(value) {
				t.Errorf("it was replaced by %.100s before the partition was claimed", e.value)
			}
			f := g.fence(7)
			f.Epoch = 3
			g.Mirror(f)
			g.confirmFence(t, f)
			if m, _ := r.position(key); m.Next != 7 {
				t.Errorf("the position is %+v", m)
			}
			if lines := log.with("key="); len(lines) != 1 || !strings.Contains(lines[0], "key="+key) {
				t.Errorf("%d lines:\n%.2000s", len(lines), strings.Join(lines, ""))
			}
		})
	}
}

// position is the entry of a position's key, as the stream's leader has it.
func (r *groupRig) position(key string) (m mirror, e entry) {
	r.t.Helper()
	insist(r.t, func(ctx context.Context) (err error) { e, err = r.bucket().get(ctx, key); return err })
	m, _ = positionOf(e.value)
	return m, e
}
