package natssource

import (
	"context"
	"encoding/json"
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

// view is what the bucket holds of the group, as far as we have heard. It comes
// from a watcher, may be late or out of date, and decides nothing: whoever acts
// on it does so by a swap that the leader of the bucket judges.
type view struct {
	bucket *bucket
	keys   keys
	log    *slog.Logger
	wake   chan<- struct{} // told of every change that matters
	again  chan struct{}   // asks for a full read

	mu  sync.Mutex
	now *picture
}

// picture is the state of the keys of a group.
type picture struct {
	leases  map[streamPartition]holder
	members map[string]member
	missed  map[string]revision // by member: its record when one of its leases ran out
}

// holder is what is under a lease's key.
type holder struct {
	rev     revision
	live    bool
	expired bool   // its TTL ran out, and the server left a marker
	member  string // of a live lease; empty if the value is not one of ours
}

// member is the record of a member of the group.
type member struct {
	rev revision
	memberRecord
}

func newPicture() *picture {
	return &picture{leases: map[streamPartition]holder{}, members: map[string]member{}, missed: map[string]revision{}}
}

func (p *picture) clone() *picture {
	return &picture{leases: maps.Clone(p.leases), members: maps.Clone(p.members), missed: maps.Clone(p.missed)}
}

func newView(b *bucket, k keys, log *slog.Logger, wake chan<- struct{}) *view {
	return &view{bucket: b, keys: k, log: log, wake: wake, again: make(chan struct{}, 1), now: newPicture()}
}

// snapshot returns the view as it is now.
func (v *view) snapshot() *picture {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.clone()
}

// refresh asks for a full read, soon.
func (v *view) refresh() {
	select {
	case v.again <- struct{}{}:
	default:
	}
}

// learn takes over what the leader has said about a lease. If that is older than
// what we have seen, the watcher was faster, or the bucket is another one.
// It reports whether it was any news.
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

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run follows the bucket until ctx ends. It reads everything anew at least once
// a TTL: a watcher does not say that the bucket was deleted and created again,
// or restored from a backup.
func (v *view) run(ctx context.Context, ensure func(context.Context) error) {
	for ctx.Err() == nil {
		err := v.follow(ctx)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			v.log.Error("the bucket of the leases was deleted; creating it again", "bucket", v.bucket.name)
			v.replace(newPicture())
			err = ensure(ctx)
		}
		if err != nil && ctx.Err() == nil {
			v.log.Warn("cannot watch the bucket of the leases, trying again", "bucket", v.bucket.name, "err", err)
			backoff.Sleep(ctx, jitter(v.bucket.ttl/3))
		}
	}
}

// follow reads everything, and then what changes, until the next full read is
// due.
func (v *view) follow(ctx context.Context) error {
	w, err := v.read(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	due := time.NewTimer(jitter(v.bucket.ttl))
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
		case <-due.C:
			return nil
		case <-v.again:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// readLimit bounds a full read.
const readLimit = 5 * time.Second

// read opens a watcher and replaces the view by what it shows first.
func (v *view) read(ctx context.Context) (*watcher, error) {
	started, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	w, err := v.watch(started, ctx)
	if err != nil {
		return nil, denied(v.bucket.js.Conn(), apiPrefix(v.bucket.js)+"CONSUMER.", err)
	}
	fresh := newPicture()
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
	// The watcher lives as long as its context; nobody else bounds its start.
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

// ofJetStream is an error of nats.go's older package, which makes the watches of
// package jetstream too, as that of package jetstream.
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

// replace takes over a full read. Revisions are not compared: the bucket may be
// another one, and if the replica that answered lags behind, the leader will say so.
func (v *view) replace(fresh *picture) {
	v.mu.Lock()
	old := v.now
	for id, rev := range old.missed {
		if m, ok := fresh.members[id]; ok && m.rev == rev {
			fresh.missed[id] = rev
		}
	}
	for at, now := range fresh.leases {
		if was := old.leases[at]; fresh.members[was.member].rev == old.members[was.member].rev {
			fresh.miss(was, now)
		}
	}
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

// apply takes over what a watcher said. It reports whether that can matter to
// anybody.
func (p *picture) apply(k keys, e jetstream.KeyValueEntry) bool {
	live := e.Operation() == jetstream.KeyValuePut
	if id, ok := k.parseMember(e.Key()); ok {
		return p.setMember(id, e.Revision(), live, e.Value())
	}
	if at, ok := k.parseLease(e.Key()); ok {
		// We release by DEL, so PURGE is the server's marker of a TTL that ran
		// out, or the work of somebody else.
		expired := e.Operation() == jetstream.KeyValuePurge
		return p.setLease(at, entry{rev: e.Revision(), live: live, expired: expired, value: e.Value()})
	}
	return false
}

func (p *picture) setMember(id string, rev revision, live bool, value []byte) bool {
	was, known := p.members[id]
	if known && rev <= was.rev {
		return false
	}
	if !live {
		delete(p.members, id)
		delete(p.missed, id)
		return known
	}
	now := member{rev: rev}
	if json.Unmarshal(value, &now.memberRecord) != nil {
		return false
	}
	_, missed := p.missed[id]
	delete(p.missed, id)
	p.members[id] = now
	return !known || missed || !now.equal(was.memberRecord)
}

// miss notes that a member let a lease run out.
func (p *picture) miss(was, now holder) {
	if m, ok := p.members[was.member]; ok && was.live && now.expired {
		p.missed[was.member] = m.rev
	}
}

// setLease notes what is under a lease's key.
func (p *picture) setLease(at streamPartition, e entry) bool {
	was, known := p.leases[at]
	if known && e.rev <= was.rev {
		return false
	}
	now := holder{rev: e.rev, live: e.live, expired: e.expired}
	if e.live {
		var r record
		_ = json.Unmarshal(e.value, &r) // whatever it is, it is not free
		now.member = r.Member
	}
	p.miss(was, now)
	p.leases[at] = now
	return !known || was.live != now.live || was.member != now.member
}
