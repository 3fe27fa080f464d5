package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides in which order a member starts and ends: it registers last, and deregisters after
// its leases were given back; and whether it is on trial. balance.go decides what it takes meanwhile.

// Member is this process's part in a group. Make one with [Open], and call [Member.Close] at the end.
// Its methods are safe for concurrent use.
type Member struct {
	Options
	store    cas.Store
	keys     keys
	id       string // random id of this process; the ids of its registrations begin with it
	log      *slog.Logger
	view     *view
	troubles *troubles.Log[string]
	wake     *waits.Signal
	changed  chan struct{} // asks stayRegistered to renew, because our record has changed

	base    context.Context // outlives Open's ctx until Close
	end     context.CancelFunc
	running atomic.Bool
	loops   sync.WaitGroup // of the view and the registration
	leave   context.CancelFunc
	workers sync.WaitGroup // of leases

	joining    *registration // may have been written; belongs to the goroutine that registers
	membership sync.Mutex
	renewed    time.Time
	joined     bool                // Joined was reported, and Left was not since
	asking     *semaphore.Weighted // one request for a registration at a time

	mu           sync.Mutex
	own          func(*Held)
	registration *registration // the latest
	registered   int
	note         string
	slots        map[Resource]*slot
	handing      map[Resource]*handoff // given back, and not yet taken
	pace         int                   // how many may be given back at a time; 0: nobody took what we gave back
	taken        time.Time             // when another member last took one
	seen         *picture              // at the last balance
	disbelieved  map[string]bool       // by registration id
	ending       map[string]bool       // by registration id
	releasing    map[Resource]bool
	suspects     map[string]member // ended by End, by registration id
	closing      bool
	opened       time.Time     // when this process had read the group's keys
	onTrial      bool          // it serves nothing yet
	trial        time.Duration // the record of new members has it
	trialUntil   time.Time
}

// Open registers this process in a group. The store stays the caller's.
func Open(ctx context.Context, store cas.Store, o Options) (*Member, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := newMember(ctx, store, o)
	if err := m.start(ctx); err != nil {
		m.unregister()
		m.end()
		m.troubles.Close()
		return nil, fmt.Errorf("lease: open group %q: %w", o.Group, err)
	}
	return m, nil
}

func newMember(ctx context.Context, store cas.Store, o Options) *Member {
	m := &Member{
		Options: o, store: store, keys: keysOf(o.Group), id: newMemberID(), wake: &waits.Signal{}, changed: make(chan struct{}, 1), asking: semaphore.NewWeighted(1),
		slots: map[Resource]*slot{}, handing: map[Resource]*handoff{}, pace: 1, disbelieved: map[string]bool{}, ending: map[string]bool{}, releasing: map[Resource]bool{}, suspects: map[string]member{},
	}
	m.log = o.Logger.With("member", m.id)
	m.troubles = troubles.New[string](m.log, "concerned")
	m.base, m.end = context.WithCancel(context.WithoutCancel(ctx))
	for name, count := range o.Resources {
		for n := range count {
			r := Resource{name, n}
			m.slots[r] = &slot{Resource: r}
		}
	}
	m.view = &view{
		store: store, keys: m.keys, ttl: o.TTL, wake: m.wake, again: make(chan struct{}, 1), now: newPicture(),
		trouble: func(what string, err error) { m.trouble(asView, what, err) },
		well:    func() { m.troubles.Well(asView) },
		asked:   m.asked,
	}
	return m
}

func (m *Member) start(ctx context.Context) error {
	// What this process may not do is found out here. It registers last, because the others give
	// resources to a registered member.
	limited := func(do func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, readLimit)
			defer cancel()
			return do(ctx)
		}
	}
	for _, do := range []func(context.Context) error{limited(m.view.ask), limited(m.tryGet), m.view.start, m.begin, limited(m.register)} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	registered, leave := context.WithCancel(m.base)
	m.leave = leave
	m.loops.Go(func() { m.view.run(m.base) })
	m.loops.Go(func() { m.watchClock(m.base) })
	m.loops.Go(func() { m.lead(m.base) })
	m.isMember(time.Now())
	m.loops.Go(func() {
		defer m.end() // also of the other loops
		m.stayRegistered(registered)
	})
	return nil
}

// unregister removes a registration that may have been written, for which others would keep resources
// free.
func (m *Member) unregister() {
	if m.joining == nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.base, m.goodbyeLimit())
	defer cancel()
	_ = m.joining.item.remove(ctx) // otherwise it ends after its TTL
}

// Owner names this process and no other: Options.Name, the host, the process id, and a random id.
func (m *Member) Owner() string { return m.Name + "/" + m.id }

func (m *Member) tryGet(ctx context.Context) error {
	_, err := m.store.Get(ctx, m.keys.member(m.id))
	return err
}

// Term returns how long leases outlive the last renewal of the registration: nine tenths of TTL.
func (m *Member) Term() time.Duration { return term(m.TTL) }

// Run shares the resources with the other members until ctx ends: as equally as possible, and with as
// few moves as possible when members join or leave. It calls own, on a goroutine of its own, with
// each lease that it takes. The lease is released when own returns. If own returns while the lease is
// neither lost nor to be given back, the resource is left to others until the members change.
//
// Run then gives all leases back, those of [Member.Acquire] too, waits for own to return, for Term and
// 5 s at most, and returns nil. It may be called once.
func (m *Member) Run(ctx context.Context, own func(*Held)) error {
	if m.running.Swap(true) {
		return errors.New("lease: Run was called before")
	}
	if m.isFirst() {
		m.settle(ctx)
	}
	m.mu.Lock()
	m.own = own
	m.mu.Unlock()
	m.wake.Fire()
	select {
	case <-ctx.Done():
	case <-m.base.Done():
		return fmt.Errorf("lease: %w", ErrClosed)
	}
	m.drain()
	return nil
}

// lead balances until ctx ends.
func (m *Member) lead(ctx context.Context) {
	tick := time.NewTicker(min(time.Second, m.TTL/10))
	defer tick.Stop()
	for ctx.Err() == nil {
		woken, began := m.wake.Next(), time.Now()
		m.balance()
		// The changes of a moment are one. A large group takes half of a processor at most.
		waits.Sleep(ctx, max(balanceRest, time.Since(began)))
		select {
		case <-ctx.Done():
		case <-woken:
		case <-tick.C:
		}
	}
}

// balanceRest is the least time between two balances.
const balanceRest = 10 * time.Millisecond

// settle waits for other members that are starting, too: the first one would take everything and give
// most of it back at once. A store that reports changes shows when nobody joins any more.
func (m *Member) settle(ctx context.Context) {
	most := min(time.Second, m.TTL/10)
	quiet, until := most, time.Now().Add(most)
	if _, reports := m.store.(cas.Watcher); reports {
		quiet = most / 2
	}
	for wait := quiet; wait > 0 && waits.Sleep(ctx, wait); {
		wait = min(quiet-m.view.sinceJoin(), time.Until(until))
	}
}

func (m *Member) isFirst() bool {
	now := m.view.snapshot()
	for _, h := range now.leases {
		if now.isHeld(h) {
			return false
		}
	}
	return true
}

// lingerLimit limits how long Run waits for a holder whose lease was lost.
const lingerLimit = 5 * time.Second

// drain gives all leases back.
func (m *Member) drain() {
	m.mu.Lock()
	m.closing = true
	for _, sl := range m.slots {
		if sl.held != nil {
			sl.held.giveBack() // which ends the lease after the term
		}
	}
	m.mu.Unlock()
	waits.Notify(m.changed) // the others assign without us; our leases last until they are released
	done := make(chan struct{})
	go func() {
		m.workers.Wait()
		close(done)
	}()
	limit := time.NewTimer(m.Term() + lingerLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		m.log.Error("some functions have not returned although their leases have ended")
	}
}

// Close removes the registration. Leases that are still held are lost. Call it after Run has returned.
func (m *Member) Close() {
	m.leave()
	m.loops.Wait()
	m.end()
	m.troubles.Close()
}

// asked logs what Facts has returned, and gives up all leases of a store that can forget them. Others
// would take what is forgotten while this member still holds it.
func (m *Member) asked(err error) {
	const unsuitable = "the store of the leases has settings with which it can lose leases: all leases are given up"
	switch {
	case errors.Is(err, cas.ErrUnsuitable):
		m.current().over(err)
		m.troubles.Add(m.log, slog.LevelError, asSettings, err.Error(), unsuitable, "err", err)
	case err == nil:
		m.troubles.Well(asSettings)
	}
}

const (
	asSettings = "settings"

	asMember = "member"
	asView   = "view"
)

// logIncident logs an incident of who, and repeats the line now and again while it lasts.
func (m *Member) logIncident(who, key, what string, args ...any) {
	m.troubles.Add(m.log, slog.LevelWarn, who, key, what, args...)
}

// trouble logs that a request for who has failed. If the store does not answer or is full,
// everybody's requests fail and share the log lines.
func (m *Member) trouble(who, what string, err error, args ...any) {
	if errors.Is(err, cas.ErrUnsuitable) {
		return // asked has logged it
	}
	if errors.Is(err, cas.ErrFull) {
		const full = "the store of the leases is full: leases cannot be renewed, and end when their TTL has passed"
		m.troubles.Add(m.log, slog.LevelError, who, full, full, "err", err)
		return
	}
	const fails = "the store of the leases does not answer as it should, trying again"
	m.logIncident(who, fails, fails, append([]any{"request", what, "err", err}, args...)...)
}

// A process that crashes and is started again and again would be given its share each time, and leave
// it idle for a TTL each time. So when a member has died soon after it joined, its group puts new
// members on trial: they serve nothing until they have lived for twice as long as that one did.

const (
	mostTrial = 20            // TTLs
	memory    = 3 * mostTrial // TTLs for which the last such death counts
)

// begin puts this process on trial if the group wants it.
func (m *Member) begin(context.Context) error {
	now := m.view.snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened = time.Now()
	m.onTrial = m.trialLeft(now) > 0
	if m.onTrial {
		m.log.Warn("a member of the group has died soon after it joined: this one waits before it takes resources", "for", m.trialLeft(now).Round(time.Millisecond))
	}
	return nil
}

// endTrial ends the trial once its time has passed, or if a resource would be idle for it. m.mu is
// held.
func (m *Member) endTrial(now *picture) {
	if m.onTrial && m.trialLeft(now) <= 0 {
		m.onTrial = false
		waits.Notify(m.changed)
	}
}

func (m *Member) trialLeft(now *picture) time.Duration {
	trial, served := time.Duration(0), map[string]int32{}
	for id, r := range now.members {
		if m.isMine(id) || r.Ended {
			continue
		}
		trial = max(trial, min(time.Duration(r.Trial)*time.Millisecond, mostTrial*m.TTL))
		for name, n := range r.Serves {
			served[name] = max(served[name], n)
		}
	}
	for name, n := range m.Resources {
		if n > served[name] {
			return 0
		}
	}
	if len(m.Resources) == 0 { // it only has locks
		return 0
	}
	return trial - time.Since(m.opened)
}

// learnFromDeaths looks for members that are gone without having left. Whoever was ended by End is gone if its
// process has not registered again within a TTL. m.mu is held.
func (m *Member) learnFromDeaths(was, now *picture) {
	for id, r := range was.members {
		if len(r.Serves) == 0 && r.Trial == 0 { // it has left, or only had locks
			continue
		}
		if r.Ended || m.isMine(id) || now.isRegistered(id) || !r.first.After(m.opened) {
			continue
		}
		left := time.Since(r.since) < m.termOf(r.memberRecord)*2/3 // or it would have renewed since
		switch {
		case now.members[id].Suspected != "":
			m.suspects[id] = r
		case !left:
			m.learnFromDeath(id, r)
		}
	}
	for id, r := range m.suspects {
		dead := time.Since(r.since) >= 2*m.termOf(r.memberRecord)
		if dead {
			m.learnFromDeath(id, r)
		}
		if dead || now.isBack(id) {
			delete(m.suspects, id)
		}
	}
}

// isBack reports whether the process of a registration that is over has registered again.
func (p *picture) isBack(id string) bool {
	for other := range p.members {
		if processOf(other) == processOf(id) && p.isRegistered(other) {
			return true
		}
	}
	return false
}

func (m *Member) learnFromDeath(id string, r member) {
	trial := time.Duration(0)
	if time.Now().Before(m.trialUntil) {
		trial = m.trial
	}
	lived := r.since.Sub(r.first) + m.TTL/3 // at most
	if lived > trial+mostTrial/2*m.TTL {
		return
	}
	m.trial, m.trialUntil = min(2*lived, mostTrial*m.TTL), time.Now().Add(memory*m.TTL)
	waits.Notify(m.changed)
	m.log.Warn("a member has died soon after it joined: for a while, new members serve nothing until they have lived for longer",
		"registration", id, "name", inert.Short(r.Name), "lived", lived.Round(time.Millisecond), "longer", m.trial.Round(time.Millisecond), "while", memory*m.TTL)
}
