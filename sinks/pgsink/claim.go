package pgsink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
)

// claimTries is how often a claim evicts and then waits for the row of its
// fence: the claim it replaces may have opened another transaction in between.
const claimTries = 3

// Claim implements [epoch.Sink]. It ends open transactions of the claim it
// replaces, see [Sink.Commit], where the role may do so.
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	if err := checkOrigin(c.Origin); err != nil {
		return epoch.Fence{}, err
	}
	if err := checkText(c.Owner); err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: owner %q of a claim of %s %w", c.Owner, c.Partition, err)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	f, err := s.claim(ctx, seen, c)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: claim %s: %w", c.Partition, faultless(ended(ctx, explain(err))))
	}
	return f, nil
}

func (s *Sink) claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (f epoch.Fence, err error) {
	var begun time.Time
	for range claimTries {
		begun = time.Now()
		// Before the swap, because a transaction that is frozen between its
		// advance and its commit holds the row. The source has confirmed our
		// lease after we saw that claim, so its owner is a zombie, or us.
		s.evict(ctx, seen.Claim)
		if f, err = s.swap(ctx, seen, c); !isLockTimeout(err) {
			break
		}
	}
	if err != nil {
		if refused := refusedClaim(err, c); refused != nil {
			return f, refused
		}
		if isLockTimeout(err) {
			err = fmt.Errorf("another transaction holds the fence for longer than %v: %w", s.options.ClaimTimeout, err)
		}
		return f, err
	}
	s.proofs.claimed(f, begun)
	// And after it, for a transaction that began in between. From the swap on,
	// a new one is refused as it begins, unless its process has advanced the fence
	// within the last proofLife; that one is refused as it ends.
	s.evict(ctx, seen.Claim)
	return f, nil
}

func (s *Sink) swap(ctx context.Context, seen epoch.Fence, c epoch.Claim) (f epoch.Fence, err error) {
	var adopt, adoptMark *int64
	if c.Adopt != nil {
		adopt, adoptMark = (*int64)(&c.Adopt.Offset), (*int64)(&c.Adopt.Mark)
	}
	err = s.transact(ctx, harmful, func(b *pgx.Batch) {
		b.Queue(s.sql.claim, c.Partition.Group, c.Partition.Topic, c.Partition.Number, ms(s.options.ClaimTimeout/claimTries),
			int64(seen.Epoch), seen.Claim.String(), c.Log, c.Source, c.Generation, int64(c.Above), c.Owner, c.ID.String(), adopt, adoptMark)
	}, func(r pgx.BatchResults) error {
		var row fenceRow
		f, err = row.scan(r.QueryRow())
		return err
	})
	return f, err
}

// claimLock is the key of the advisory lock that transactions of a claim share
// while they are open. Claim ids are random, so it is as good as unique.
func claimLock(id epoch.ClaimID) int64 {
	return int64(binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(id[8:]))
}

// evictSQL ends the connections whose open transaction carries a claim. It is
// no function of the schema, because it must run with the rights of the role
// itself: a role may end its own connections.
//
// Between the look at pg_locks and the signal the transaction may end and
// another begin on its connection. Then that one is lost: its owner sees a lost
// connection, which it may see at any time.
const evictSQL = `
select count(pg_catalog.pg_terminate_backend(l.pid))
from pg_catalog.pg_locks l
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
	and l.classid = $1::bigint::oid and l.objid = $2::bigint::oid
	and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
	and l.pid <> pg_catalog.pg_backend_pid()`

// evict ends the open transactions of a claim. What it cannot do is left to the
// timeouts of those transactions.
func (s *Sink) evict(ctx context.Context, id epoch.ClaimID) {
	if id == (epoch.ClaimID{}) {
		return
	}
	key := uint64(claimLock(id))
	err := s.on(ctx, harmless, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, evictSQL, int64(key>>32), int64(key&0xffffffff))
		return err
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	s.denied.Do(func() {
		s.options.Logger.WarnContext(ctx, "pgsink: cannot end the open transaction of a replaced claim; "+
			"a frozen owner holds the rows it locked until its idle timeout. Have all processes of a group use one role",
			"claim", id.String(), "idle_timeout", s.options.IdleTimeout, "error", err)
	})
}

func isLockTimeout(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeLockTimeout
}
