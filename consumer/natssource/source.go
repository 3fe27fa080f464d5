package natssource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/leased"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

// This file starts the source, makes the bucket or checks that it holds the keys of the group, joins
// the group, and ends all in order. Package lease decides who gets which partition.

// Source is a [consumer.Source] that leases partitions through a key-value bucket and reads them
// from JetStream. Make one with [New]. A Source serves one Run.
type Source struct {
	Options
	started atomic.Bool

	log    *slog.Logger
	flight *flight

	own  func(context.Context, consumer.Tenure)
	in   func(err error) // Run's joined
	base context.Context // outlives Run's ctx until everything was given back

	logs   []*streamLog
	store  *natsstore.Store
	member *lease.Member

	membership leased.Membership
	joined     chan struct{} // closed when member is set

	mu      sync.Mutex
	tenures map[lease.Resource]*tenure // that are running
}

var (
	_ consumer.Source   = (*Source)(nil)
	_ consumer.Rejoiner = (*Source)(nil)
	_ operate.Watch     = (*Source)(nil)
)

// New checks the options and returns a Source that has done nothing yet.
func New(o Options) (*Source, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Source{Options: o, log: o.Logger, joined: make(chan struct{}), tenures: map[lease.Resource]*tenure{}}
	s.flight = newFlight(o.LeaseTTL, func() uint64 { return o.JetStream.Conn().Stats().Reconnects })
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
	return s.lead(ctx, closed)
}

// lead shares the partitions until ctx ends or the connection is closed.
func (s *Source) lead(ctx context.Context, closed <-chan nats.Status) error {
	working, rest := context.WithCancel(s.base)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer rest()
	for _, log := range s.logs {
		workers.Go(func() { log.watch(working) })
	}
	workers.Go(func() { s.publishPositions(working) })

	defer s.member.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if s.JetStream.Conn().IsClosed() {
		stop(s.closedError())
	}
	workers.Go(func() {
		select {
		case <-closed:
			err := s.closedError()
			for _, t := range s.running() {
				t.Lose(err)
			}
			stop(err)
		case <-working.Done():
		}
	})
	if err := s.member.Run(ctx, s.hold); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

func (s *Source) closedError() error {
	return fmt.Errorf("natssource: group %q: the connection was closed, and what is leased through it cannot be renewed; "+
		"make it reconnect for as long as it takes (nats.MaxReconnects(-1)): %w", s.Group, nats.ErrConnectionClosed)
}

// start retries passing errors for StartTimeout.
func (s *Source) start(ctx context.Context) error {
	at := strings.Join(s.JetStream.Conn().Servers(), ", ")
	server := waits.Server{Name: "NATS at " + at, Timeout: s.StartTimeout, Log: s.log, Patience: s.patience}
	after, err := server.Wait(ctx, s.tryStart)
	switch {
	case err == nil:
		return nil
	case isCredentials(err):
		return fmt.Errorf("natssource: NATS at %s refuses the credentials: %w", at, err)
	case waits.IsTLS(err):
		return fmt.Errorf("natssource: TLS with NATS at %s fails; is it the right port and certificate authority (nats.RootCAs)? %w", at, err)
	case errors.Is(err, nats.ErrConnectionClosed):
		return fmt.Errorf("natssource: the connection to NATS at %s is closed; make it try for as long as it takes "+
			"(nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1)): %w", at, err)
	case jsapi.HasCode(err, jsapi.CodeNoPeers):
		return fmt.Errorf("%w: it was tried for %v; are there as many NATS servers with JetStream as the stream has replicas, and do they all run?", err, after)
	case s.patience(err) == 0:
		return err
	}
	if s.connected() == nil {
		return fmt.Errorf("natssource: JetStream at %s has not answered in time, tried for %v; is JetStream enabled there, and is the round trip much shorter than %v and a sixth of LeaseTTL? %w", at, after, attemptLimit, err)
	}
	return fmt.Errorf("natssource: JetStream at %s was not reached within %v; does NATS run there, with JetStream, and is the address right? %w", at, after, err)
}

func (s *Source) patience(err error) time.Duration {
	var denied *PermissionError
	if errors.As(err, &denied) || errors.Is(err, cas.ErrFull) || isCredentials(err) || waits.IsTLS(err) || !jsapi.Passing(err) {
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
	if s.store == nil {
		if err := s.openBucket(ctx); err != nil {
			return err
		}
	}
	return s.join(ctx)
}

// openBucket opens the bucket, which is created with the replicas of the first stream.
func (s *Source) openBucket(ctx context.Context) error {
	look := func(stream string) (jetstream.StreamConfig, error) {
		ctx, cancel := context.WithTimeout(ctx, attemptLimit)
		defer cancel()
		info, err := s.JetStream.Stream(ctx, stream)
		if err != nil {
			return jetstream.StreamConfig{}, err
		}
		return info.CachedInfo().Config, nil
	}
	first, err := look(s.Streams[0].Name)
	if err != nil {
		return fmt.Errorf("natssource: look at stream %q: %w", s.Streams[0].Name, err)
	}
	store, err := natsstore.Open(ctx, s.JetStream, natsstore.Options{Bucket: s.Bucket, Replicas: first.Replicas})
	if err != nil {
		return fmt.Errorf("natssource: %w", err)
	}
	bucket, err := look("KV_" + s.Bucket)
	if err != nil {
		return fmt.Errorf("natssource: look at bucket %q: %w", s.Bucket, err)
	}
	if err := s.needs().check(bucket); err != nil {
		return fmt.Errorf("natssource: bucket %q cannot hold leases: %w", s.Bucket, err)
	}
	s.store = store
	return nil
}

// bucketSource names the bucket in fences. The name does not include the time of creation: a bucket
// that was created again leases the same partitions, and the sink continues its epochs.
func (s *Source) bucketSource() string {
	if p := jsapi.Prefix(s.JetStream); p != jetstream.DefaultAPIPrefix {
		return "nats-kv:" + s.Bucket + "@" + strings.TrimSuffix(p, ".")
	}
	return "nats-kv:" + s.Bucket
}

// join makes this process a member of the group.
func (s *Source) join(ctx context.Context) error {
	partitions := map[string]int32{}
	for _, l := range s.logs {
		partitions[l.stream.Name] = l.partitions()
	}
	m, err := lease.Open(ctx, s.store, lease.Options{
		Group: s.Group, Resources: partitions, TTL: s.LeaseTTL, Name: s.given, Logger: s.Logger,
		MaxStall: -1, // package consumer gives up what hangs
		Joined:   func(err error) { s.in(leased.ReasonOf(err)) },
		Ready:    s.membership.Ready,
		Removal:  func(key string) string { return removal(s.Bucket, s.store.KeyInBucket(key)) },
	})
	if err != nil {
		return fmt.Errorf("natssource: %w", err)
	}
	s.member = m
	s.membership.Join(m)
	close(s.joined)
	return nil
}

func (s *Source) openNext(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	stream := s.Streams[len(s.logs)]
	log, err := openLog(ctx, s.Options, stream, s.flight)
	var refused *PermissionError
	if errors.As(jsapi.Denied(s.JetStream.Conn(), jsapi.Prefix(s.JetStream)+"STREAM.INFO."+stream.Name, err), &refused) {
		return fmt.Errorf("natssource: stream %q: %w", stream.Name, refused)
	}
	if err != nil {
		return err
	}
	log.renewed = func() { s.streamRenewed(log) }
	s.logs = append(s.logs, log)
	return nil
}

// Identity implements [consumer.Source].
func (s *Source) Identity() (group, name string) { return s.Group, s.Name }

// Member implements [consumer.Remover].
func (s *Source) Member() (id string, session time.Duration, static bool) {
	return s.membership.Member()
}

// RejoinWhen implements [consumer.Rejoiner].
func (s *Source) RejoinWhen(ready func(context.Context) error) { s.membership.Ready = ready }

// Remove implements [consumer.Remover].
func (s *Source) Remove(ctx context.Context, member, reason string) error {
	err := s.membership.Remove(ctx, member, reason)
	var denied *PermissionError
	if errors.As(err, &denied) {
		err = errors.Join(consumer.ErrMayNotRemove, err)
	}
	if err != nil {
		return fmt.Errorf("natssource: remove a member: %w", err)
	}
	return nil
}

func (s *Source) logOf(stream string) *streamLog {
	return s.logs[slices.IndexFunc(s.logs, func(l *streamLog) bool { return l.stream.Name == stream })]
}

func (s *Source) begin(t *tenure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenures[t.Resource] = t
}

func (s *Source) over(t *tenure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tenures, t.Resource)
}

func (s *Source) running() []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.tenures), func(a, b *tenure) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Number, b.Number))
	})
}

func (s *Source) streamRenewed(log *streamLog) {
	for _, t := range s.running() {
		if t.log == log && t.incarnation != log.incarnation() {
			s.log.Error("the stream was deleted and created again", "stream", t.Name, "partition", t.Number)
			t.Lose(errOtherStream)
		}
	}
}

type needs struct{ message, messages, bytes int }

const (
	beside     = 200 // bytes of a message beside its value: subject, headers, and what the server adds
	fewMembers = 4   // members that a group may have now or had a moment ago
)

// needs returns the space for the keys of this group: a lease and a position for each partition,
// fewMembers members, and a suspicion.
func (s *Source) needs() needs {
	const most = 400 // bytes of a lease, and of a registration beside the streams that it names
	name, partitions, n := 0, 0, needs{message: most}
	for _, l := range s.logs {
		p, mark := position{Next: math.MaxInt64, Epoch: math.MaxInt64, Lag: math.MaxInt64, Owner: s.Name}, epoch.Mark(math.MaxInt64)
		p.Print = &mark
		for n := range l.partitions() {
			if log := l.logID(l.incarnation(), n); len(log) > len(p.Log) {
				p.Log = log
			}
		}
		if data, err := json.Marshal(p); err == nil {
			n.message = max(n.message, len(data))
		}
		name += len(l.stream.Name) + len(`"":2147483647,`)
		partitions += int(l.partitions())
	}
	n.message = max(n.message, most+name) + len(s.Name) + len(s.Group) + beside
	n.messages = 2*partitions + fewMembers + 1 // the last suspicion
	n.bytes = n.messages * n.message
	n.message = max(n.message, 2<<10) // that natsstore wants
	return n
}

func (n needs) check(c jetstream.StreamConfig) error {
	for _, limit := range []struct {
		has       int64
		need      int
		what, opt string
	}{
		{int64(c.MaxMsgSize), n.message, "bytes in a message", "--max-msg-size"},
		{c.MaxMsgs, n.messages, "messages", "--max-msgs"},
		{c.MaxBytes, n.bytes, "bytes", "--max-bytes"},
	} {
		if limit.has > 0 && limit.has < int64(limit.need) {
			return fmt.Errorf("it has room for %d %s, and this group alone needs %d; lift that with: nats stream edit %s %s=-1",
				limit.has, limit.what, limit.need, c.Name, limit.opt)
		}
	}
	return nil
}
