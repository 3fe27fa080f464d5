package pgsink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file claims fences, and ends the open transactions of the claim that is replaced. It
// decides which simultaneous claims and reads travel together. Whether a claim is made, the SQL
// function claim (0002_ledger.sql of internal/sql/pgschema) decides: it calls swap_claim
// (0001_fence.sql), which locks the fence, compares it with what was seen and writes,
// and adds an entry to the audit log. When a claim is made, package consumer decides.

// claimTries limits the tries: the replaced claim may open another transaction in between.
const claimTries = 3

// Claim implements [epoch.Sink]. It ends open transactions of the claim that it replaces, see
// [Sink.Commit], so that a frozen owner delays the next one by a few round trips. A role may end its
// own connections: all processes of a group should use one role, or the new owner's role should be a
// member of the old one's. Otherwise the sink logs a line once, and the server ends the frozen
// transaction after [Options.IdleTimeout] or, from PostgreSQL 17 on, 1 s after its context ends.
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	if err := checkOrigin(c.Origin); err != nil {
		return epoch.Fence{}, err
	}
	if err := checkText(c.Owner); err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: owner %q of a claim of %s %w", c.Owner, c.Partition, err)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	b := bid{seen, c, operate.Text(operate.TraceID(ctx), maxTraceID)}
	f, err := s.claims.do(ctx, b, func() (epoch.Fence, error) { return s.claim(ctx, b) })
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: claim %s: %w", c.Partition, passed(ended(ctx, explain(err))))
	}
	return f, nil
}

type bid struct {
	seen    epoch.Fence
	claim   epoch.Claim
	traceID string
}

// maxTraceID limits the bytes of a trace id in the audit log.
const maxTraceID = 100

func (s *Sink) claim(ctx context.Context, b bid) (f epoch.Fence, err error) {
	var (
		begun time.Time
		fs    []epoch.Fence
	)
	for range claimTries {
		begun = time.Now()
		// Evict before the swap, because a transaction that is frozen between its advance and its
		// commit holds the row. The source has confirmed our lease after we saw that claim, so its
		// owner is a zombie, or this process.
		s.evict(ctx, b.seen.Claim)
		if fs, err = s.swap(ctx, s.options.ClaimTimeout/claimTries, b); !isLockTimeout(err) {
			break
		}
	}
	if err != nil {
		if refused := refusedClaim(err, b.claim); refused != nil {
			return f, refused
		}
		if isLockTimeout(err) {
			err = fmt.Errorf("another transaction holds the fence for longer than %v: %w", s.options.ClaimTimeout, err)
		}
		return f, err
	}
	f = fs[0]
	s.proofs.claimed(f, begun)
	// Evict again, for a transaction that began in between. From the swap on, look_early refuses a
	// new transaction at its beginning. A process that has advanced the fence within the last
	// proofLife skips look_early, and the check at the end refuses its transaction.
	s.evict(ctx, b.seen.Claim)
	return f, nil
}

// claimMany makes claims of several partitions in one transaction. If one of them is refused, or
// finds its fence locked, they are made in smaller groups, and at last each by itself.
func (s *Sink) claimMany(ctx context.Context, bids []bid) ([]epoch.Fence, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	replaced := make([]epoch.ClaimID, len(bids))
	for i, b := range bids {
		replaced[i] = b.seen.Claim
	}
	begun := time.Now()
	s.evict(ctx, replaced...)
	fs, err := s.swap(ctx, min(manyLockWait, s.options.ClaimTimeout/claimTries), bids...)
	switch {
	case definite(err):
		return nil, errEach
	case err != nil:
		return nil, ended(ctx, err)
	}
	for _, f := range fs {
		s.proofs.claimed(f, begun)
	}
	s.evict(ctx, replaced...)
	return fs, nil
}

// manyLockWait limits how long a claim among others waits for the row of its fence.
const manyLockWait = 50 * time.Millisecond

// swap makes claims in one transaction. It locks the fences in key order, like every transaction that
// advances several, and waits for each up to lockWait.
func (s *Sink) swap(ctx context.Context, lockWait time.Duration, bids ...bid) ([]epoch.Fence, error) {
	order := make([]int, len(bids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return bids[i].claim.Partition.Compare(bids[j].claim.Partition) })
	fs := make([]epoch.Fence, len(bids))
	err := s.transact(ctx, harmful, func(batch *pgx.Batch) {
		for _, i := range order {
			s.queueClaim(batch, bids[i], lockWait)
		}
	}, func(r pgx.BatchResults) (err error) {
		for _, i := range order {
			var row fenceRow
			if fs[i], err = row.scan(r.QueryRow()); err != nil {
				return err
			}
		}
		return nil
	})
	return fs, err
}

func (s *Sink) queueClaim(batch *pgx.Batch, b bid, lockWait time.Duration) {
	c := b.claim
	var adopt, adoptMark *int64
	if c.Adopt != nil {
		adopt, adoptMark = (*int64)(&c.Adopt.Offset), (*int64)(&c.Adopt.Mark)
	}
	batch.Queue(s.sql.claim, c.Partition.Group, c.Partition.Topic, c.Partition.Number, ms(lockWait),
		int64(b.seen.Epoch), b.seen.Claim.String(), c.Log, c.Source, c.Generation, int64(c.Above), c.Owner, c.ID.String(), adopt, adoptMark, b.traceID)
}

// claimLock returns the key of the advisory lock that transactions of a claim share while they are
// open. Claim ids are random, so the key is as good as unique.
func claimLock(id epoch.ClaimID) int64 {
	return int64(binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(id[8:]))
}

// evictSQL ends the connections whose open transaction belongs to one of the claims. It is not a
// function of the schema, because it must run with the privileges of the caller's role: a role may
// end its own connections.
//
// Between the read of pg_locks and the signal, the transaction may end and another may begin on its
// connection. Then the other transaction is ended: its owner sees a lost connection, which may
// happen at any time.
const evictSQL = `
select count(pg_catalog.pg_terminate_backend(l.pid))
from pg_catalog.pg_locks l
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
	and (l.classid, l.objid) in (select k.high::oid, k.low::oid from unnest($1::bigint[], $2::bigint[]) as k (high, low))
	and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
	and l.pid <> pg_catalog.pg_backend_pid()`

// evict ends open transactions of claims, or leaves them to their timeouts.
func (s *Sink) evict(ctx context.Context, ids ...epoch.ClaimID) {
	var high, low []int64
	for _, id := range ids {
		if id != (epoch.ClaimID{}) {
			key := uint64(claimLock(id))
			high, low = append(high, int64(key>>32)), append(low, int64(key&0xffffffff))
		}
	}
	if len(high) == 0 {
		return
	}
	err := s.on(ctx, harmless, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, evictSQL, high, low)
		return err
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	s.denied.Do(func() {
		s.options.Logger.WarnContext(ctx, "pgsink: cannot end the open transaction of a replaced claim; "+
			"a frozen owner holds the rows it locked until Options.IdleTimeout or the end of its transaction's time. Have all processes of a group use one role",
			"claims", len(high), "err", err)
	})
}

func isLockTimeout(err error) bool { return sqlState(err) == codeLockTimeout }

const (
	fewAlone = 2

	// gatherTime limits how long a call waits for others, whatever happens to the calls under way.
	gatherTime = 10 * time.Millisecond

	maxCoalesced = 512
)

// coalescer lets simultaneous calls share a statement or a transaction, for example when a process
// is granted hundreds of partitions at once. The first calls are made by themselves. Calls that
// come meanwhile are made as one. Nothing else changes: the statement for a call is sent after the
// call has come.
type coalescer[Q, A any] struct {
	many func(ctx context.Context, qs []Q) ([]A, error) // the answers in their order, or errEach

	mu      sync.Mutex
	alone   int
	waiting []*call[Q, A]
	timer   *time.Timer
}

// halvings is how often calls that cannot be made together are made in halves, before each is made by itself. 512
// claims, of which one is refused, take 41 transactions. If all are refused, that is 31 in vain.
const halvings = 4

// errEach means that the calls must be made in smaller groups.
var errEach = errors.New("not together")

type call[Q, A any] struct {
	ctx      context.Context
	q        Q
	a        A
	err      error
	answered chan struct{} // closed when a and err are there
}

// do makes a call together with others, or by itself with one.
func (t *coalescer[Q, A]) do(ctx context.Context, q Q, one func() (A, error)) (A, error) {
	c := t.join(ctx, q)
	if c == nil {
		defer t.leave()
		return one()
	}
	select {
	case <-c.answered:
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
	if errors.Is(c.err, errEach) {
		return one()
	}
	return c.a, c.err
}

// join returns nil for a call that must be made by itself.
func (t *coalescer[Q, A]) join(ctx context.Context, q Q) *call[Q, A] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alone < fewAlone {
		t.alone++
		return nil
	}
	c := &call[Q, A]{ctx: ctx, q: q, answered: make(chan struct{})}
	t.waiting = append(t.waiting, c)
	if t.timer == nil {
		t.timer = time.AfterFunc(gatherTime, t.makeAll)
	}
	return c
}

func (t *coalescer[Q, A]) leave() {
	t.mu.Lock()
	t.alone--
	waiting := len(t.waiting) > 0
	t.mu.Unlock()
	if waiting {
		go t.makeAll()
	}
}

func (t *coalescer[Q, A]) makeAll() {
	t.mu.Lock()
	all := t.waiting
	t.waiting = nil
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.mu.Unlock()
	for len(all) > 0 {
		n := min(len(all), maxCoalesced)
		t.make(all[:n], halvings)
		all = all[n:]
	}
}

func (t *coalescer[Q, A]) make(calls []*call[Q, A], halvings int) {
	var live []*call[Q, A]
	var qs []Q
	for _, c := range calls {
		if c.ctx.Err() == nil { // the caller may have gone
			live, qs = append(live, c), append(qs, c.q)
		}
	}
	var as []A
	err := errEach
	if len(live) > 1 {
		as, err = t.many(context.WithoutCancel(live[0].ctx), qs)
	}
	if half := len(live) / 2; errors.Is(err, errEach) && half > 1 && halvings > 0 {
		t.make(live[:half], halvings-1)
		t.make(live[half:], halvings-1)
		return
	}
	for i, c := range live {
		if c.err = err; err == nil {
			c.a = as[i]
		}
		close(c.answered)
	}
}
