package natssource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/backoff"
	"github.com/epochfence/epochfence/internal/reach"
)

// Source is a [consumer.Source] that leases partitions through a key-value bucket and reads them
// from JetStream. Make one with [New]. A Source serves one Run.
type Source struct {
	Options
	started atomic.Bool

	log     *slog.Logger
	member  string // random id of this process; the ids of its registrations begin with it
	keys    keys
	bucket  *bucket
	view    *view
	wake    chan struct{} // asks lead to balance
	changed chan struct{} // asks stayRegistered to renew, because our record has changed
	flight  *flight

	own  func(context.Context, consumer.Tenure)
	in   func(err error) // Run's joined
	base context.Context // outlives Run's ctx until everything was given back

	joining    *registration // may have been written; belongs to the goroutine that registers
	membership sync.Mutex
	renewed    time.Time

	asking  sync.Mutex
	logs    []*streamLog
	workers sync.WaitGroup

	mu           sync.Mutex
	registration *registration // the latest
	registered   int
	slots        map[streamPartition]*slot
	handing      *handoff
	refused      bool            // nobody took the partition that we gave back
	seen         *picture        // at the last balance
	disbelieved  map[string]bool // by registration id
	burying      map[string]bool // by registration id
	releasing    map[streamPartition]bool
	closing      bool
}

var _ consumer.Source = (*Source)(nil)

// New checks the options and returns a Source that has done nothing yet.
func New(o Options) (*Source, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Source{
		Options: o, member: newMemberID(), keys: newKeys(o.Group), slots: map[streamPartition]*slot{},
		disbelieved: map[string]bool{}, burying: map[string]bool{}, releasing: map[streamPartition]bool{},
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	s.log = o.Logger.With("member", s.member)
	s.bucket = newBucket(o.JetStream, o.Bucket, o.LeaseTTL, s.log)
	s.flight = newFlight(o.LeaseTTL, func() uint64 { return o.JetStream.Conn().Stats().Reconnects })
	s.view = newView(s.bucket, s.keys, s.log, s.wake)
	return s, nil
}

// Run implements [consumer.Source]. It returns nil after ctx has ended and everything was given
// back. It returns an error if JetStream was not reached within StartTimeout, if a stream, the
// bucket or a permission is not as it must be, or if the connection is closed
// ([nats.ErrConnectionClosed]).
func (s *Source) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	if s.started.Swap(true) {
		return errors.New("natssource: Run was called before; make a new Source")
	}
	var end context.CancelFunc
	s.base, end = context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer s.bucket.troubles.Close()
	s.own, s.in = own, joined

	nc := s.JetStream.Conn()
	closed := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(closed)
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return s.join(ctx, closed)
}

func (s *Source) join(ctx context.Context, closed <-chan nats.Status) error {
	working, rest := context.WithCancel(s.base)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer rest()
	registered, leave := context.WithCancel(working)
	workers.Go(func() { s.view.run(working, s.ensureBucket) })
	for _, log := range s.logs {
		workers.Go(func() { log.watch(working) })
	}
	workers.Go(func() { s.watchClock(working) })
	workers.Go(func() { s.publishPositions(working) })
	s.isMember(time.Now())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.stayRegistered(registered)
	}()

	err := s.lead(ctx, closed)
	if err != nil {
		for _, t := range s.running() {
			t.Lose(err)
		}
	}
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	notify(s.changed) // the others assign without us; our leases last until they are released
	s.drainAll()
	leave()
	<-gone
	return err
}

func (s *Source) lead(ctx context.Context, closed <-chan nats.Status) error {
	if s.isFirst() {
		// Other members may be starting, too. The first one would take everything and give most of
		// it back at once.
		backoff.Sleep(ctx, min(time.Second, s.LeaseTTL/10))
	}
	tick := time.NewTicker(min(time.Second, s.LeaseTTL/10))
	defer tick.Stop()
	for {
		if s.JetStream.Conn().IsClosed() {
			return fmt.Errorf("natssource: group %q: the connection was closed, and what is leased through it cannot be renewed; "+
				"make it reconnect for as long as it takes (nats.MaxReconnects(-1)): %w", s.Group, nats.ErrConnectionClosed)
		}
		if ctx.Err() != nil {
			return nil
		}
		s.balance()
		select {
		case <-ctx.Done():
		case <-closed:
		case <-s.wake:
		case <-tick.C:
		}
	}
}

func (s *Source) isFirst() bool {
	now := s.view.snapshot()
	for _, h := range now.leases {
		if now.isHeld(h) {
			return false
		}
	}
	return true
}

// start retries passing errors for StartTimeout.
func (s *Source) start(ctx context.Context) error {
	at := strings.Join(s.JetStream.Conn().Servers(), ", ")
	server := reach.Server{Name: "NATS at " + at, Timeout: s.StartTimeout, Log: s.log, Patience: s.patience}
	after, err := server.Wait(ctx, s.tryStart)
	switch {
	case err == nil:
		return nil
	case isCredentials(err):
		return fmt.Errorf("natssource: NATS at %s refuses the credentials: %w", at, err)
	case reach.IsTLS(err):
		return fmt.Errorf("natssource: TLS with NATS at %s fails; is it the right port and certificate authority (nats.RootCAs)? %w", at, err)
	case errors.Is(err, nats.ErrConnectionClosed):
		return fmt.Errorf("natssource: the connection to NATS at %s is closed; make it try for as long as it takes "+
			"(nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1)): %w", at, err)
	case hasCode(err, codeNoPeers):
		return fmt.Errorf("%w: it was tried for %v; are there as many NATS servers with JetStream as the stream has replicas, and do they all run?", err, after)
	case s.patience(err) == 0:
		return err
	}
	return fmt.Errorf("natssource: JetStream at %s was not reached within %v; does NATS run there, with JetStream, and is the address right? %w", at, after, err)
}

func (s *Source) patience(err error) time.Duration {
	var (
		denied *PermissionError
		full   *fullError
	)
	if errors.As(err, &denied) || errors.As(err, &full) || isCredentials(err) || reach.IsTLS(err) || !passing(err) {
		return 0
	}
	return s.StartTimeout
}

func isCredentials(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

func (s *Source) connected() error {
	nc := s.JetStream.Conn()
	var err error
	switch {
	case nc.IsClosed():
		err = nats.ErrConnectionClosed
	case !nc.IsConnected():
		err = nats.ErrDisconnected
	default:
		return nil
	}
	if last := nc.LastError(); last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// attemptLimit limits one request of a start, so that a lost request is repeated.
const attemptLimit = 5 * time.Second

func (s *Source) tryStart(ctx context.Context) error {
	if err := s.connected(); err != nil {
		return err
	}
	for len(s.logs) < len(s.Streams) {
		if err := s.openNext(ctx); err != nil {
			return err
		}
	}
	if err := s.ensureBucket(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	if _, err := s.bucket.get(limited, s.keys.member(s.member)); err != nil {
		return fmt.Errorf("natssource: read a key of bucket %q: %w", s.bucket.name, err)
	}
	w, err := s.view.read(ctx)
	if err != nil {
		return fmt.Errorf("natssource: watch bucket %q: %w", s.bucket.name, err)
	}
	w.stop()
	// Last, because the others give partitions to a registered member.
	limited, cancel = context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	return s.register(limited)
}

func (s *Source) openNext(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	stream := s.Streams[len(s.logs)]
	log, err := openLog(ctx, s.Options, stream, s.flight)
	var refused *PermissionError
	if errors.As(denied(s.JetStream.Conn(), apiPrefix(s.JetStream)+"STREAM.INFO."+stream.Name, err), &refused) {
		return fmt.Errorf("natssource: stream %q: %w", stream.Name, refused)
	}
	if err != nil {
		return err
	}
	log.renewed = func() { s.streamRenewed(log) }
	for n := range log.partitions() {
		p := streamPartition{log.stream.Name, n}
		s.slots[p] = &slot{streamPartition: p, log: log}
	}
	s.logs = append(s.logs, log)
	return nil
}

func (s *Source) ensureBucket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	first, err := s.JetStream.Stream(ctx, s.Streams[0].Name)
	if err != nil {
		return fmt.Errorf("natssource: look at stream %q: %w", s.Streams[0].Name, err)
	}
	s.bucket.needs = s.needs()
	return s.bucket.ensure(ctx, first.CachedInfo().Config.Replicas)
}

// lingerLimit limits how long Run waits for a handler whose context was cancelled.
const lingerLimit = 5 * time.Second

func (s *Source) drainAll() {
	for _, t := range s.running() {
		t.drain() // which ends the tenure after the term
	}
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(done)
	}()
	limit := time.NewTimer(term(s.LeaseTTL) + lingerLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.log.Error("some handlers have not returned although their partitions were taken from them")
	}
}

// Identity implements [consumer.Source].
func (s *Source) Identity() (group, name string) { return s.Group, s.Name }

func (s *Source) owner() string { return s.Name + "/" + s.member }

func (s *Source) newRecord(registration, nonce string) record {
	return record{Owner: s.Name, Member: registration, Nonce: nonce}
}

func (r record) json() []byte {
	data, _ := json.Marshal(r) // strings
	return data
}

func pad(value []byte, to int) []byte {
	return append(value, bytes.Repeat([]byte{' '}, max(0, to-len(value)))...)
}

func (s *Source) memberRecord() memberRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordLocked()
}

func (s *Source) recordLocked() memberRecord {
	r := memberRecord{Name: s.Name, Streams: map[string]int32{}, TTL: int(s.LeaseTTL / time.Second)}
	if s.closing {
		return r
	}
	for _, l := range s.logs {
		r.Streams[l.stream.Name] = l.partitions()
	}
	for p, sl := range s.slots {
		if sl.declined {
			r.Declined = append(r.Declined, p.String())
		}
	}
	slices.Sort(r.Declined)
	return r
}
