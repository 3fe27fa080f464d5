package outbox_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// odds are how often things fail, one in so many, 0 for never, and how long they
// take at most.
type odds struct {
	transient, fails, doubt    int // transactions
	lost, unavailable, refused int // requests
	own                        int // OnAnswer and OnRefused
	request, transaction       time.Duration
}

// storm is a network and a database of those odds, in a synctest bubble. It
// watches the relay in it.
type storm struct {
	*testing.T
	*chance
	odds
	o     outbox.Options[*tx]
	box   *outbox.Box[*tx]
	db    *database
	claim *stormClaim

	mu            sync.Mutex
	under         map[string]bool // keys, and entries without one, that are being sent
	most          int             // of them at a time
	answered      map[int64]bool  // entries, such that they may be deleted
	transactions  int
	inTransaction bool           // there is a transaction
	deleted       map[int64]bool // entries, by a transaction that the relay knows to have committed
	doubted       map[int64]bool // entries, by one of which it does not
	events        []outbox.Event
}

func newStorm(t *testing.T, seed uint64, is odds, o outbox.Options[*tx]) *storm {
	t.Helper()
	s := &storm{
		T: t, chance: &chance{Rand: rand.New(rand.NewPCG(seed, 2))}, odds: is, db: newDatabase(),
		under: map[string]bool{}, answered: map[int64]bool{}, deleted: map[int64]bool{}, doubted: map[int64]bool{},
	}
	s.claim = &stormClaim{storm: s, claim: &claim{db: s.db, epoch: 1, applied: make(chan struct{}, 1)}}
	o.Client = &http.Client{Transport: s}
	o.Logger = slog.New(slog.DiscardHandler)
	o.Observe = func(e outbox.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	box, err := outbox.New(table{}, o)
	if err != nil {
		t.Fatal(err)
	}
	s.o, s.box = o, box
	return s
}

// now decides whether what fails once in n times does so.
func (s *storm) now(n int) bool { return n > 0 && s.oneIn(n) }

func (s *storm) upTo(most time.Duration) time.Duration {
	s.chance.mu.Lock()
	defer s.chance.mu.Unlock()
	return time.Duration(s.Int64N(int64(most) + 1))
}

// add adds entries of the keys, and wakes the relay. The body of each is its key,
// or "-", and its ID.
func (s *storm) add(keys ...string) {
	s.Helper()
	err := s.db.do(func(t *tx) error {
		for _, key := range keys {
			e := outbox.Entry{Key: key, Scope: "s", URL: "http://receiver.test/"}
			e.Body = fmt.Appendf(nil, "%s %d", cmp.Or(key, "-"), t.db.last+1)
			if err := s.box.Add(s.Context(), t, epoch.Message{Partition: orders}, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	select {
	case s.claim.applied <- struct{}{}:
	default:
	}
}

func (s *storm) relay() *running {
	ctx, cancel := context.WithCancel(s.Context())
	run := &running{s.claim.claim, cancel, make(chan struct{})}
	go func() {
		defer close(run.done)
		s.box.Relay(ctx, s.claim)
	}()
	s.Cleanup(func() { // after a failure too: in a bubble that is over no time passes, and nothing ends
		cancel()
		<-run.done
	})
	return run
}

func (s *storm) RoundTrip(req *http.Request) (*http.Response, error) {
	var key string
	var id int64
	if _, err := fmt.Fscan(req.Body, &key, &id); err != nil {
		s.Error(err)
	}
	_ = req.Body.Close()
	leave := s.enter(key, id)
	var err error
	select {
	case <-time.After(s.upTo(s.request)):
	case <-req.Context().Done():
		err = context.Cause(req.Context())
	}
	leave()
	status := http.StatusOK
	switch {
	case err != nil:
		return nil, err
	case s.now(s.lost):
		return nil, errLost
	case s.now(s.unavailable):
		status = http.StatusServiceUnavailable
	case s.now(s.refused):
		status = http.StatusBadRequest
	}
	if status == http.StatusOK || status == http.StatusBadRequest && s.o.OnRefused != nil {
		s.mu.Lock()
		s.answered[id] = true
		s.mu.Unlock()
	}
	body := io.NopCloser(strings.NewReader("x"))
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: body, Request: req}, nil
}

// enter looks at a request that arrives, until it leaves.
func (s *storm) enter(key string, id int64) (leave func()) {
	name := key
	if key == "-" {
		name = fmt.Sprint(id)
	}
	for _, row := range s.db.left() {
		if row.Key == key && row.ID < id {
			s.Errorf("entry %d of key %s is sent while %d is there", id, key, row.ID)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under[name] {
		s.Errorf("two requests of %s at a time", name)
	}
	s.under[name] = true
	s.most = max(s.most, len(s.under))
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.under, name)
	}
}

// stormClaim is a claim whose transactions fail, take their time, and commit
// without the relay being told.
type stormClaim struct {
	*storm
	*claim
}

func (c *stormClaim) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	defer c.enterTransaction()()
	select {
	case <-time.After(c.upTo(c.transaction)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var before, after map[int64]outbox.Row
	err := c.claim.Do(ctx, func(ctx context.Context, t *tx) error {
		before = maps.Clone(t.rows)
		err := apply(ctx, t)
		after = t.rows
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil && c.oneIn(2):
			return context.Cause(ctx)
		case c.now(c.transient):
			return fmt.Errorf("%w: away", epoch.ErrTransient)
		case c.now(c.fails):
			return errTest
		}
		return nil
	})
	<-time.After(c.upTo(c.transaction))
	if err != nil {
		return err
	}
	gone := c.deleted
	if c.now(c.doubt) {
		gone, err = c.doubted, fmt.Errorf("%w: the acknowledgement is lost", epoch.ErrInDoubt)
	}
	for id := range before {
		if _, there := after[id]; !there {
			gone[id] = true
		}
	}
	return err
}

func (c *stormClaim) enterTransaction() (leave func()) {
	c.storm.mu.Lock()
	defer c.storm.mu.Unlock()
	if c.inTransaction {
		c.Error("two transactions of the relay at a time")
	}
	c.inTransaction = true
	c.transactions++
	return func() {
		c.storm.mu.Lock()
		defer c.storm.mu.Unlock()
		c.inTransaction = false
	}
}
