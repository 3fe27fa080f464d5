package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
)

// This file has fences and advances as SQL has them. It reads fences without locks, which may be
// out of date, makes those that are missing, and refuses names that PostgreSQL could not store.
// The SQL functions decide what is allowed.

// fenceRow is a fence, also as row_to_json writes it to the DETAIL of an error.
type fenceRow struct {
	Group      string       `json:"group_name"`
	Topic      string       `json:"topic"`
	Partition  int32        `json:"partition"`
	Log        string       `json:"log_id"`
	Source     string       `json:"lease_source"`
	Generation int64        `json:"lease_generation"`
	Owner      string       `json:"owner"`
	Epoch      epoch.Epoch  `json:"epoch"`
	Claim      string       `json:"claim_id"`
	Next       epoch.Offset `json:"next_offset"`
	Mark       epoch.Mark   `json:"mark"`
	Applied    bool         `json:"applied"`
	SetUnder   epoch.Epoch  `json:"set_under"`
	Mode       epoch.Mode   `json:"mode"`
	ModeBy     string       `json:"mode_by"`
	ModeReason string       `json:"mode_reason"`
	ModeAt     *time.Time   `json:"mode_at"`
}

// fenceColumns are in the order of [fenceRow.into].
const fenceColumns = "group_name, topic, partition, log_id, lease_source, lease_generation, owner, epoch, claim_id::text, next_offset, mark, applied, " +
	"set_under, mode, mode_by, mode_reason, mode_at"

func (r *fenceRow) scan(row pgx.Row) (epoch.Fence, error) {
	if err := row.Scan(r.into()...); err != nil {
		return epoch.Fence{}, err
	}
	return r.fence()
}

// scanFence is for [collect].
func scanFence(row pgx.CollectableRow) (epoch.Fence, error) {
	var r fenceRow
	return r.scan(row)
}

func (r *fenceRow) into() []any {
	return []any{&r.Group, &r.Topic, &r.Partition, &r.Log, &r.Source, &r.Generation, &r.Owner,
		&r.Epoch, &r.Claim, &r.Next, &r.Mark, &r.Applied, &r.SetUnder, &r.Mode, &r.ModeBy, &r.ModeReason, &r.ModeAt}
}

// fence is the row as package epoch has it.
func (r *fenceRow) fence() (epoch.Fence, error) {
	id, err := epoch.ParseClaimID(r.Claim)
	return epoch.Fence{
		Origin: epoch.Origin{
			Partition: epoch.Partition{Group: r.Group, Topic: r.Topic, Number: r.Partition},
			Log:       r.Log,
			Source:    r.Source,
		},
		Generation: r.Generation, Owner: r.Owner, Epoch: r.Epoch, Claim: id, Next: r.Next, Mark: r.Mark, Applied: r.Applied,
		SetUnder: r.SetUnder, Pause: epoch.PauseState{Mode: r.Mode, By: r.ModeBy, Reason: r.ModeReason, Since: inUTC(r.ModeAt)},
	}, err
}

// inUTC returns a time of the server, or zero for NULL. pgx returns times in the local time zone.
func inUTC(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// fenceMany returns the fence of each partition, or nothing for one that has none.
func (s *Sink) fenceMany(ctx context.Context, ps []epoch.Partition) ([][]epoch.Fence, error) {
	return perPartition(ctx, s, ps, func(f epoch.Fence) epoch.Partition { return f.Partition }, scanFence, s.sql.look)
}

// Look implements [epoch.Sink].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	for _, p := range ps {
		if err := checkPartition(p); err != nil {
			return nil, err
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	read := func() ([]epoch.Fence, error) {
		groups, topics, numbers := keys(ps)
		return collect(ctx, s, scanFence, s.sql.look, groups, topics, numbers)
	}
	var rows []epoch.Fence
	var err error
	if len(ps) == 1 { // for a claim, of which there may be many at the same time
		rows, err = s.fences.do(ctx, ps[0], read)
	} else {
		rows, err = read()
	}
	if err != nil {
		return nil, fmt.Errorf("pgsink: read fence %s: %w", epoch.Names(ps), passed(ended(ctx, explain(err))))
	}
	found := epoch.Fences{}
	for _, f := range rows {
		found[f.Partition] = f
	}
	return found, nil
}

// keys returns partitions as the SQL functions take several of them.
func keys(ps []epoch.Partition) (groups, topics []string, numbers []int32) {
	for _, p := range ps {
		groups, topics, numbers = append(groups, p.Group), append(topics, p.Topic), append(numbers, p.Number)
	}
	return groups, topics, numbers
}

// perPartition reads rows about several partitions, and returns those of each partition in the
// order of ps, for a [coalescer].
func perPartition[T any](ctx context.Context, s *Sink, ps []epoch.Partition, of func(T) epoch.Partition, scan pgx.RowToFunc[T], sql string, more ...any) ([][]T, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	groups, topics, numbers := keys(ps)
	rows, err := collect(ctx, s, scan, sql, append([]any{groups, topics, numbers}, more...)...)
	if err != nil {
		return nil, ended(ctx, err)
	}
	found := map[epoch.Partition][]T{}
	for _, row := range rows {
		found[of(row)] = append(found[of(row)], row)
	}
	answers := make([][]T, len(ps))
	for i, p := range ps {
		answers[i] = found[p]
	}
	return answers, nil
}

// collect returns the rows of a query. It asks which server this is in the same round trip. If the
// connection is lost, it reads all of them again.
func collect[T any](ctx context.Context, s *Sink, scan pgx.RowToFunc[T], sql string, args ...any) (found []T, err error) {
	err = s.reading(ctx, func(b *pgx.Batch) { b.Queue(sql, args...) }, func(r pgx.BatchResults) error {
		rows, err := r.Query()
		if err == nil {
			found, err = pgx.AppendRows([]T(nil), rows, scan)
		}
		return err
	})
	return found, err
}

// reading sends what queue adds, and asks which server this is in the same round trip: another
// one may lack what was committed last. An operator's sink takes no notice of that, because it
// keeps no position.
func (s *Sink) reading(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.on(ctx, harmless, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		texts := queueTexts(conn, b)
		b.Queue(s.sql.server)
		queue(b)
		r := conn.SendBatch(ctx, b)
		var id serverID
		err := texts(r)
		if err == nil {
			err = id.scan(r.QueryRow())
		}
		if err == nil {
			err = read(r)
		}
		if closed := r.Close(); err == nil {
			err = closed
		}
		if err != nil || !s.numbers {
			return err
		}
		s.server.answeredBy(ctx, id)
		return s.follows(ctx, conn, id)
	})
}

// Seed implements [epoch.Sink].
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	if err := (epoch.Fences{}).Seed(starts); err != nil {
		return fmt.Errorf("pgsink: %w", err)
	}
	if len(starts) == 0 {
		return nil
	}
	var (
		numbers                                   []int32
		logs, sources                             []string
		nexts, earliest, nextMarks, earliestMarks []int64
	)
	for _, st := range starts {
		if err := checkOrigin(st.Origin); err != nil {
			return err
		}
		numbers = append(numbers, st.Partition.Number)
		logs = append(logs, st.Log)
		sources = append(sources, st.Source)
		nexts = append(nexts, int64(st.Next.Offset))
		nextMarks = append(nextMarks, int64(st.Next.Mark))
		earliest = append(earliest, int64(st.Earliest.Offset))
		earliestMarks = append(earliestMarks, int64(st.Earliest.Mark))
	}
	group, topic := starts[0].Partition.Group, starts[0].Partition.Topic
	err := s.write(ctx, harmless, s.sql.seed, group, topic, ms(s.options.ClaimTimeout), numbers, logs, sources, nexts, nextMarks, earliest, earliestMarks)
	if refused := refusedSeed(err, starts); refused != nil {
		err = refused
	} else {
		err = ours(err)
	}
	if err != nil {
		return fmt.Errorf("pgsink: seed %s and %d more: %w", starts[0].Partition, len(starts)-1, err)
	}
	return nil
}

// advances are the advances of one transaction in key order, as the SQL functions take them. If
// held, it is the one claim that the transaction needs without moving the position.
type advances struct {
	list  []epoch.Advance
	held  bool
	locks []int64 // of the claims
}

func newAdvances(as []epoch.Advance) (*advances, error) {
	if len(as) == 0 {
		return nil, fmt.Errorf("pgsink: commit: no advance: it would be a transaction without a fence")
	}
	s := &advances{list: slices.Clone(as), locks: make([]int64, 0, len(as))}
	slices.SortStableFunc(s.list, func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })
	for i, a := range s.list {
		if a.To < a.From {
			return nil, fmt.Errorf("pgsink: commit: advance %s from %d back to %d", a.Partition, a.From, a.To)
		}
		if i > 0 && s.list[i-1].Partition == a.Partition {
			return nil, fmt.Errorf("pgsink: commit: %s is given twice", a.Partition)
		}
		if err := checkPartition(a.Partition); err != nil {
			return nil, err
		}
		s.locks = append(s.locks, claimLock(a.Claim))
	}
	return s, nil
}

func newHeld(h epoch.Hold) (*advances, error) {
	s := &advances{list: []epoch.Advance{{Partition: h.Partition, Claim: h.Claim}}, held: true, locks: []int64{claimLock(h.Claim)}}
	return s, checkPartition(h.Partition)
}

// columns returns the advances as the arrays that the SQL functions for several take. Those of a hold have no
// positions, which tells look_early that it is held.
func (s *advances) columns() []any {
	var groups, topics, claims []string
	var numbers []int32
	var froms, tos, marks []int64
	for _, a := range s.list {
		groups, topics, numbers = append(groups, a.Partition.Group), append(topics, a.Partition.Topic), append(numbers, a.Partition.Number)
		if claims = append(claims, a.Claim.String()); !s.held {
			froms, tos, marks = append(froms, int64(a.From)), append(tos, int64(a.To)), append(marks, int64(a.Mark))
		}
	}
	return []any{groups, topics, numbers, claims, froms, tos, marks}
}

// of returns the advance of a partition, if the transaction has one.
func (s *advances) of(p epoch.Partition) (epoch.Advance, bool) {
	i, ok := slices.BinarySearchFunc(s.list, p, func(a epoch.Advance, p epoch.Partition) int { return a.Partition.Compare(p) })
	if !ok {
		return epoch.Advance{}, false
	}
	return s.list[i], true
}

func (s *advances) String() string {
	if len(s.list) == 1 {
		return s.list[0].Partition.String()
	}
	return fmt.Sprintf("%s and %d more", s.list[0].Partition, len(s.list)-1)
}

var (
	errNUL     = errors.New("holds a NUL byte, which PostgreSQL cannot store in text")
	errNotUTF8 = errors.New("is not valid UTF-8, which PostgreSQL cannot store in text")
)

// checkText refuses what the server would refuse with an error that does not say which text it
// is about.
func checkText(s string) error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return errNUL
	case !utf8.ValidString(s):
		return errNotUTF8
	default:
		return nil
	}
}

// maxNames limits group and topic to what an index row can hold.
const maxNames = 2000

func checkPartition(p epoch.Partition) error {
	if err := checkText(p.Group); err != nil {
		return fmt.Errorf("pgsink: group %q %w", p.Group, err)
	}
	if err := checkText(p.Topic); err != nil {
		return fmt.Errorf("pgsink: topic %q %w", p.Topic, err)
	}
	if n := len(p.Group) + len(p.Topic); n > maxNames {
		return fmt.Errorf("pgsink: group %.40q… and topic %.40q… have %d bytes together; the limit is %d", p.Group, p.Topic, n, maxNames)
	}
	return nil
}

func checkOrigin(o epoch.Origin) error {
	if err := checkPartition(o.Partition); err != nil {
		return err
	}
	if err := checkText(o.Log); err != nil {
		return fmt.Errorf("pgsink: log id %q of %s %w", o.Log, o.Partition, err)
	}
	if err := checkText(o.Source); err != nil {
		return fmt.Errorf("pgsink: lease source %q of %s %w", o.Source, o.Partition, err)
	}
	return nil
}
