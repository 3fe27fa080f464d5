package natssource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/backoff"
)

// view is what we know of the group's keys in the bucket. It comes from a watcher, may be late or
// out of date, and decides nothing: actions on it are swaps, which the bucket's leader accepts or
// refuses.
type view struct {
	bucket *bucket
	keys   keys
	log    *slog.Logger
	wake   chan<- struct{} // notified of every change that matters
	again  chan struct{}   // asks for a full read

	mu  sync.Mutex
	now *picture
}

type picture struct {
	leases  map[streamPartition]holder
	members map[string]member
	gone    map[string]revision // registrations that have a marker, and its revision
	over    uint64              // reconnects of our connection when it was read
}

// holder is the state of a lease's key.
type holder struct {
	rev    revision
	live   bool
	member string // the registration that it names; empty if the value is no lease
	nonce  string // of the tenure

	since   time.Time // when we first saw this revision
	strange time.Time // since when the key has held only values that are no lease
}

type member struct {
	rev   revision
	since time.Time // when we first saw this revision
	memberRecord
}

func newPicture() *picture {
	return &picture{leases: map[streamPartition]holder{}, members: map[string]member{}, gone: map[string]revision{}}
}

func (p *picture) clone() *picture {
	return &picture{leases: maps.Clone(p.leases), members: maps.Clone(p.members), gone: maps.Clone(p.gone), over: p.over}
}

// keepTimes takes over when unchanged keys were first seen, unless the connection was lost since:
// while it was lost, nobody may have been able to write.
func (p *picture) keepTimes(was *picture) {
	if p.over != was.over {
		return
	}
	for at, h := range p.leases {
		before := was.leases[at]
		if before.rev == h.rev {
			h.since = before.since
		}
		if before.isStrange() && h.isStrange() {
			h.strange = before.strange
		}
		p.leases[at] = h
	}
	for id, m := range p.members {
		if before := was.members[id]; before.rev == m.rev {
			m.since = before.since
			p.members[id] = m
		}
	}
}

// isHeld reports whether somebody has a lease, as far as is known. A lease is free after it was
// released, or if the registration that it names is missing.
func (p *picture) isHeld(h holder) bool {
	_, registered := p.members[h.member]
	return h.live && (h.member == "" || registered)
}

// membersChangedSince also notices a member that joined and left before we heard of it.
func (p *picture) membersChangedSince(was *picture) bool {
	same := maps.EqualFunc(p.members, was.members, func(member, member) bool { return true })
	for id := range p.gone {
		same = same && was.gone[id] > 0
	}
	return !same
}

func newView(b *bucket, k keys, log *slog.Logger, wake chan<- struct{}) *view {
	return &view{bucket: b, keys: k, log: log, wake: wake, again: make(chan struct{}, 1), now: newPicture()}
}

func (v *view) snapshot() *picture {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.clone()
}

func (v *view) refresh() {
	select {
	case v.again <- struct{}{}:
	default:
	}
}

// learn records the leader's answer about a lease and reports whether it is news. If the answer is
// older than the view, the watcher was faster or the bucket is another one.
func (v *view) learn(p streamPartition, e entry) (news bool) {
	v.mu.Lock()
	was := v.now.leases[p].rev
	changed := v.now.setLease(p, e)
	v.mu.Unlock()
	if changed {
		notify(v.wake)
	}
	if e.rev < was {
		v.refresh()
	}
	return e.rev > was
}

func (v *view) learnMember(id string, e entry) {
	v.mu.Lock()
	changed := v.now.setMember(id, e)
	v.mu.Unlock()
	if changed {
		notify(v.wake)
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fullReads is the number of TTLs between two full reads.
const fullReads = 4

// run follows the bucket until ctx ends. A watcher does not report that the bucket was deleted and
// created again, or restored from a backup: it continues with whatever is there. So run checks the
// bucket once a TTL and reads everything again if it is another one, and every fullReads TTLs in
// any case.
func (v *view) run(ctx context.Context, ensure func(context.Context) error) {
	for ctx.Err() == nil {
		err := v.follow(ctx)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			v.bucket.troubles.Add(v.log, slog.LevelError, asView, "deleted", "the bucket of the leases was deleted; creating it again", "bucket", v.bucket.name)
			v.replace(newPicture())
			err = ensure(ctx)
		}
		if err != nil && ctx.Err() == nil {
			v.bucket.trouble(asView, "cannot watch the bucket of the leases, trying again", err)
			backoff.Sleep(ctx, jitter(v.bucket.ttl/3))
		}
	}
}

// follow reads everything and then applies changes until the next full read is due.
func (v *view) follow(ctx context.Context) error {
	before, err := v.bucket.life(ctx)
	if err != nil {
		return err
	}
	w, err := v.read(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	v.bucket.troubles.Well(asView)
	look := time.NewTicker(jitter(v.bucket.ttl))
	defer look.Stop()
	due := time.NewTimer(jitter(fullReads * v.bucket.ttl))
	defer due.Stop()
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errors.New("the watcher has ended")
			}
			if e != nil {
				v.apply(e)
			}
		case <-look.C:
			if now, err := v.bucket.life(ctx); err == nil && now != before || errors.Is(err, jetstream.ErrBucketNotFound) {
				return err
			} // after another error, the next tick asks again
		case <-due.C:
			return nil
		case <-v.again:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

const readLimit = 5 * time.Second

// read opens a watcher and replaces the view by what the watcher shows first.
func (v *view) read(ctx context.Context) (*watcher, error) {
	started, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	fresh := newPicture()
	fresh.over = v.bucket.js.Conn().Stats().Reconnects
	w, err := v.watch(started, ctx)
	if err != nil {
		return nil, denied(v.bucket.js.Conn(), apiPrefix(v.bucket.js)+"CONSUMER.", err)
	}
	for {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				w.stop()
				return nil, errors.New("the watcher has ended")
			case e == nil:
				v.replace(fresh)
				return w, nil
			}
			fresh.apply(v.keys, e)
		case <-started.Done():
			w.stop()
			return nil, fmt.Errorf("read the keys of the group: %w", started.Err())
		}
	}
}

func (v *view) watch(starting, ctx context.Context) (*watcher, error) {
	kv, err := v.bucket.js.KeyValue(starting, v.bucket.name)
	if err != nil {
		return nil, err
	}
	// The watcher lives as long as its context, and nothing else limits its start.
	ctx, cancel := context.WithCancel(ctx)
	bounded := context.AfterFunc(starting, cancel)
	defer bounded()
	w, err := kv.WatchFiltered(ctx, []string{v.keys.member(">"), v.keys.prefix + "lease.>"})
	if err != nil {
		cancel()
		if starting.Err() != nil {
			err = starting.Err()
		}
		return nil, ofJetStream(err)
	}
	return &watcher{w, cancel}, nil
}

// ofJetStream converts an error of nats.go's older package, which also makes the watchers of
// package jetstream, to one of package jetstream.
func ofJetStream(err error) error {
	var old *nats.APIError
	if !errors.As(err, &old) {
		return err
	}
	return &jetstream.APIError{Code: old.Code, ErrorCode: jetstream.ErrorCode(old.ErrorCode), Description: old.Description}
}

// watcher is a [jetstream.KeyWatcher] whose stop leaves nothing behind.
type watcher struct {
	jetstream.KeyWatcher
	cancel context.CancelFunc
}

func (w *watcher) stop() {
	go func() {
		for range w.Updates() { // its callback may be waiting to hand one over
		}
	}()
	_ = w.Stop()
	w.cancel()
}

// replace installs a full read. It does not compare revisions: the bucket may be another one, and
// if a lagging replica has answered, the leader will say so.
func (v *view) replace(fresh *picture) {
	v.mu.Lock()
	fresh.keepTimes(v.now)
	v.now = fresh
	v.mu.Unlock()
	notify(v.wake)
}

func (v *view) apply(e jetstream.KeyValueEntry) {
	v.mu.Lock()
	changed := v.now.apply(v.keys, e)
	v.mu.Unlock()
	if changed {
		notify(v.wake)
	}
}

// apply records a watcher's entry and reports whether the change matters to anybody.
func (p *picture) apply(k keys, e jetstream.KeyValueEntry) bool {
	said := entry{rev: e.Revision(), live: e.Operation() == jetstream.KeyValuePut, value: e.Value()}
	if id, ok := k.parseMember(e.Key()); ok {
		return p.setMember(id, said)
	}
	if at, ok := k.parseLease(e.Key()); ok {
		return p.setLease(at, said)
	}
	return false
}

func (p *picture) setMember(id string, e entry) bool {
	was, known := p.members[id]
	if known && e.rev <= was.rev || e.rev <= p.gone[id] {
		return false
	}
	if !e.live {
		news := p.gone[id] == 0
		delete(p.members, id)
		p.gone[id] = e.rev
		return news
	}
	now := member{rev: e.rev, since: time.Now(), memberRecord: registrationOf(e.value)}
	p.members[id] = now
	return !known || !now.equal(was.memberRecord)
}

func (p *picture) setLease(at streamPartition, e entry) bool {
	was, known := p.leases[at]
	if known && e.rev <= was.rev {
		return false
	}
	now := holder{rev: e.rev, live: e.live, since: time.Now()}
	if e.live {
		r, _ := leaseOf(e.value) // even a value that is no lease is not free
		now.member, now.nonce = r.Member, r.Nonce
	}
	if now.isStrange() {
		now.strange = now.since
		if was.isStrange() {
			now.strange = was.strange
		}
	}
	p.leases[at] = now
	return !known || was.live != now.live || was.member != now.member || was.nonce != now.nonce
}
