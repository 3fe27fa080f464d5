package pgsink_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// crowd is a sink with partitions of which a stranger has locked as many rows of fences as
// are claimed one by one at a time, so that other claims come together.
type crowd struct {
	*rig
	sink   *pgsink.Sink
	locked []epoch.Partition
	free   []epoch.Partition
	sent   sent

	meanwhile func() // while the free ones are claimed
}

// sent counts what a pool sends in batches.
type sent struct{ claims, transactions, looks atomic.Int64 }

func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	claims := 0
	for _, q := range d.Batch.QueuedQueries {
		switch {
		case strings.Contains(q.SQL, ".claim("):
			claims++
		case strings.Contains(q.SQL, ".read_fence"):
			s.looks.Add(1)
		}
	}
	if claims > 0 {
		s.transactions.Add(1)
		s.claims.Add(int64(claims))
	}
	return ctx
}

func (s *sent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *sent) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func newCrowd(t *testing.T, free int) *crowd {
	t.Helper()
	c := &crowd{rig: newRig(t), meanwhile: func() {}}
	c.sink = c.openOn(c.pool(func(o *pgxpool.Config) { o.ConnConfig.Tracer = &c.sent }), func(o *pgsink.Options) {
		o.ClaimTimeout, o.CallTimeout = time.Minute, 2*time.Minute // for the locked ones
	})
	var starts []epoch.Start
	for n := range pgsink.FewAlone + free {
		p := epoch.Partition{Group: "billing", Topic: "orders", Number: int32(n)}
		starts = append(starts, epoch.Start{Origin: origin(p)})
		if n < pgsink.FewAlone {
			c.locked = append(c.locked, p)
		} else {
			c.free = append(c.free, p)
		}
	}
	if err := c.sink.Seed(t.Context(), starts); err != nil {
		t.Fatal(err)
	}
	return c
}

// claimAll claims the free partitions at the same time, while claims of the locked ones
// wait. It returns what came of the free ones.
func (c *crowd) claimAll(bid func(p epoch.Partition) (epoch.Fence, epoch.Claim)) (map[epoch.Partition]epoch.Fence, map[epoch.Partition]error) {
	c.Helper()
	locker := c.db.Superuser(c.TB)
	if _, err := locker.Exec(c.Context(), "begin; select from epochfence.fence where partition < $1 for update", pgx.QueryExecModeSimpleProtocol, pgsink.FewAlone); err != nil {
		c.Fatal(err)
	}
	var waiting sync.WaitGroup
	for _, p := range c.locked {
		seen, err := epoch.FenceOf(c.Context(), c.sink, p)
		if err != nil {
			c.Fatal(err)
		}
		waiting.Go(func() {
			if _, err := c.sink.Claim(c.Context(), seen, epoch.NewClaim(lease(p, 9))); err != nil {
				c.Errorf("a claim of a partition that was locked for a while: %v", err)
			}
		})
	}
	c.eventually("the claims of the locked partitions wait",
		"select count(*) = $1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%.claim(%'", pgsink.FewAlone)
	c.sent.claims.Store(0)
	c.sent.transactions.Store(0)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		fs   = map[epoch.Partition]epoch.Fence{}
		errs = map[epoch.Partition]error{}
	)
	type call struct {
		seen  epoch.Fence
		claim epoch.Claim
	}
	calls := map[epoch.Partition]call{}
	for _, p := range c.free {
		seen, claim := bid(p)
		calls[p] = call{seen, claim}
	}
	for p, is := range calls {
		all.Go(func() {
			f, err := c.sink.Claim(c.Context(), is.seen, is.claim)
			mu.Lock()
			defer mu.Unlock()
			if fs[p] = f; err != nil {
				errs[p] = err
			}
		})
	}
	c.meanwhile()
	all.Wait() // while the others wait
	if _, err := locker.Exec(c.Context(), "rollback"); err != nil {
		c.Fatal(err)
	}
	waiting.Wait()
	return fs, errs
}

func (c *crowd) fresh(p epoch.Partition) (epoch.Fence, epoch.Claim) {
	c.Helper()
	seen, err := epoch.FenceOf(c.Context(), c.sink, p)
	if err != nil {
		c.Fatal(err)
	}
	return seen, epoch.NewClaim(lease(p, 9))
}

func TestClaimsThatComeTogetherShareTransactions(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 100)
	fs, errs := c.claimAll(c.fresh)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	claims, transactions := c.sent.claims.Load(), c.sent.transactions.Load()
	if claims != 100 || transactions > 50 {
		t.Errorf("%d claims of 100 partitions took %d transactions", claims, transactions)
	}
	for p, f := range fs {
		stored, err := epoch.FenceOf(t.Context(), c.sink, p)
		if err != nil || stored != f || f.Partition != p || f.Epoch != 9 {
			t.Errorf("%s: the claim returned %+v and left %+v, %v", p, f, stored, err)
		}
	}
}

func TestAClaimThatIsRefusedAmongOthersIsRefusedAlone(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 20)
	stale := map[epoch.Partition]bool{}
	fs, errs := c.claimAll(func(p epoch.Partition) (epoch.Fence, epoch.Claim) {
		seen, bid := c.fresh(p)
		if p.Number%5 == 0 {
			stale[p] = true
			claim(t, c.open(), p, 8)
		}
		return seen, bid
	})
	for p, f := range fs {
		switch {
		case stale[p]:
			want(t, errs[p], epoch.ErrStale)
		case errs[p] != nil || f.Epoch != 9:
			t.Errorf("%s: %+v, %v", p, f, errs[p])
		}
	}
}

func TestAFenceThatIsLockedDelaysNoOtherClaimForLong(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 20)
	locker := c.db.Superuser(t)
	among := c.free[10]
	if _, err := locker.Exec(t.Context(), fmt.Sprintf("begin; select from epochfence.fence where partition = %d for update", among.Number)); err != nil {
		t.Fatal(err)
	}
	c.meanwhile = func() {
		c.eventually("all others are claimed", "select count(*) = 19 from epochfence.fence where epoch = 9")
		if _, err := locker.Exec(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
	}
	if _, errs := c.claimAll(c.fresh); len(errs) > 0 {
		t.Error(errs)
	}
}

// Where the server does not end the transaction within manyLockWait, each claim is made by
// itself: on a busy machine that may be so once, and not again and again.
func TestClaimsThatComeTogetherEndTheTransactionsOfThoseTheyReplace(t *testing.T) {
	t.Parallel()
	var took []int64
	for range 5 {
		n := claimsOverAFrozenOwner(t)
		if n <= 25 || t.Failed() {
			return
		}
		took = append(took, n)
	}
	t.Errorf("20 partitions took %d claims: they were never made together", took)
}

// claimsOverAFrozenOwner returns how many claims 20 partitions took.
func claimsOverAFrozenOwner(t *testing.T) int64 {
	c := newCrowd(t, 20)
	owner := c.open()
	for _, p := range c.free[:10] {
		claim(t, owner, p, 5)
	}
	frozen := freeze(t, c.appURL, claim(t, owner, c.free[5], 5), time.Hour)
	_, errs := c.claimAll(c.fresh)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if _, err := frozen.Exec(t.Context(), "commit"); err == nil {
		t.Error("the replaced owner committed")
	}
	return c.sent.claims.Load()
}

func TestFencesThatAreReadTogetherAreThoseThatWereAskedFor(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 100)
	var all sync.WaitGroup
	c.sent.looks.Store(0)
	for n := range 300 {
		p := epoch.Partition{Group: "billing", Topic: "orders", Number: int32(n)}
		all.Go(func() {
			f, err := epoch.FenceOf(t.Context(), c.sink, p)
			switch {
			case n >= len(c.locked)+len(c.free):
				want(t, err, epoch.ErrMissing)
			case err != nil || f.Partition != p:
				t.Errorf("%s: %+v, %v", p, f, err)
			}
		})
	}
	all.Wait()
	if n := c.sent.looks.Load(); n > 150 {
		t.Errorf("300 reads took %d statements", n)
	}
}
