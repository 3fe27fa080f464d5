package observe

import (
	"cmp"
	"maps"
	"slices"
	"time"
	"unique"
)

// This file decides what a series of rows means. All rows of a partition are judged together, in the order in
// which they were noted. A transaction that is frozen between its row and its commit is noted early and
// commits late: the snapshots of later rows tell.

// Judge judges rows, which must be sorted by group, topic, partition and ID. It holds the rows of one partition at a
// time, some 270 bytes each.
func Judge(rows func(yield func(Row) bool)) Report {
	j := judge{
		report:    Report{Unit: "transaction", Repeated: map[Kind]int64{}, Refused: map[Reason]int64{}, Logs: []string{}, Refusals: []Refusal{}, Episodes: []Episode{}},
		processes: map[string]bool{}, transactions: map[uint64]bool{}, refused: map[uint64]bool{},
	}
	var part []noted
	name := func(s string) string { return unique.Make(s).Value() } // a row's texts are mostly those of the rows before it
	for r := range rows {
		r.Group, r.Topic, r.Process = name(r.Group), name(r.Topic), name(r.Process)
		if len(part) > 0 && (part[0].Number != r.Number || part[0].Topic != r.Topic || part[0].Group != r.Group) {
			j.partition(part)
			clear(part)
			part = part[:0]
		}
		part = append(part, noted{Row: r})
	}
	if len(part) > 0 {
		j.partition(part)
	}
	j.report.Transactions += int64(len(j.transactions))
	j.report.Processes = int64(len(j.processes))
	return j.report
}

type judge struct {
	report       Report
	processes    map[string]bool
	transactions map[uint64]bool
	refused      map[uint64]bool // counted once, for the first reason
	lastRefused  uint64

	log  [2]string       // the group and the topic of seen
	seen map[int64]place // where an id was first
}

// place is where a message is: at an offset, or if that is not known, in a range.
type place struct {
	number, first, last int64
	exact               bool
}

// noted is a row, and what later rows tell of it.
type noted struct {
	Row
	stale    bool      // another process had a later generation before it was committed
	openTill time.Time // the last time at which its transaction was seen open
}

// openBefore reports whether the transaction of r was open when an earlier row was noted.
func (r noted) openBefore(was noted) bool {
	return r.Tx < was.Tx || slices.Contains(was.Snapshot.Open, r.Tx)
}

// span is a range of offsets, and the last row that applied it.
type span struct {
	first, last int64
	row         int
}

func (j *judge) partition(p []noted) {
	markStale(p)
	if log := [2]string{p[0].Group, p[0].Topic}; log != j.log {
		j.log, j.seen = log, map[int64]place{}
		j.report.Logs = append(j.report.Logs, log[0]+"/"+log[1])
	}
	j.report.Partitions++
	var spans []span
	position, high := p[0].First, p[0].First-1 // of the fence, and of what was applied
	enough := 64
	for i, r := range p {
		if len(spans) > enough {
			spans = merge(spans, p, r.Snapshot)
			enough = 64 + 2*len(spans)
		}
		j.count(r.Row)
		var repeats, again int64 // again: of rows that a fence would have accepted
		parts, rest := cut(spans, r.First, r.Last, i)
		spans = rest
		for _, s := range parts {
			n := s.last - s.first + 1
			if s.row < 0 {
				j.report.Reordered += max(0, min(s.last, high)-s.first+1)
				continue
			}
			repeats += n
			if r.stale { // what was applied stays that of its owner, for what repeats it later
				_, spans = cut(spans, s.first, s.last, s.row)
			}
			if !p[s.row].stale {
				again += n
			}
			j.repeat(p, s, i)
		}
		producer := j.byProducer(r.Row, parts)
		j.report.Repeated[Producer] += producer
		caught := max(0, min(r.Caught, repeats+producer))
		j.report.Caught += caught
		j.report.AppliedTwice += repeats + producer - caught
		switch {
		case r.stale:
			j.refuse(r.Row, Stale, position)
		case again > 0:
			j.refuse(r.Row, Applied, position)
		case r.First < position:
			j.refuse(r.Row, Order, position)
		}
		if !r.stale {
			position = max(position, r.Last+1)
		}
		high = max(high, r.Last)
	}
	for i := 1; i < len(spans); i++ {
		if missing := spans[i].first - spans[i-1].last - 1; missing > 0 {
			j.report.Missing += missing
			j.report.Gaps++
		}
	}
}

func (j *judge) count(r Row) {
	j.processes[r.Process] = true
	if r.UnreadIDs {
		j.report.UnreadIDs++
	}
	if r.Tx == 0 {
		j.report.Transactions++
		j.report.Unit = "row"
	} else {
		j.transactions[r.Tx] = true
	}
	if j.report.First.IsZero() || r.At.Before(j.report.First) {
		j.report.First = r.At
	}
	j.report.Last = slices.MaxFunc([]time.Time{j.report.Last, r.At}, time.Time.Compare)
}

// markStale finds the stale rows of a partition, and how long transactions were open.
func markStale(p []noted) {
	var open []int                                        // rows whose transactions have not been seen to end
	own, latest := map[string]int64{}, map[string]int64{} // the highest generation of each process, and the latest
	for i, r := range p {
		still := open[:0]
		for _, o := range open {
			q := &p[o]
			if r.Tx != q.Tx && r.Snapshot.hadEnded(q.Tx) {
				continue
			}
			still = append(still, o)
			q.openTill = r.At
			q.stale = q.stale || q.Process != r.Process && q.Generation >= 0 && r.Generation > q.Generation
		}
		open = still
		if r.Tx != 0 {
			open = append(open, i)
		}
		if r.Generation < 0 {
			continue
		}
		if r.Generation < own[r.Process] && r.Generation != latest[r.Process] && countsAnew(r.Row, p[i+1:], own) {
			clear(own)
		}
		for process, generation := range own {
			p[i].stale = p[i].stale || process != r.Process && generation > r.Generation
		}
		own[r.Process], latest[r.Process] = max(own[r.Process], r.Generation), r.Generation
	}
}

// countsAnew reports whether the group was deleted before r, which has a lower generation than its process had.
// The other explanation is a transaction that the process began earlier. Then the process gets back to its
// generation, or another process continues from the old ones.
func countsAnew(r Row, later []noted, own map[string]int64) (stays bool) {
	highest := slices.Max(slices.Collect(maps.Values(own)))
	for _, q := range later {
		had, known := own[q.Process]
		switch {
		case q.Process == r.Process && q.Generation >= had:
			return false
		case q.Process == r.Process:
			stays = stays || q.Generation >= r.Generation
		case q.Generation > r.Generation:
			return q.Generation < highest && (!known || q.Generation < had)
		}
	}
	return stays
}

// merge joins neighbours of one process and generation whose transactions had ended at a snapshot, so that
// the spans are about as many as the runs of offsets.
func merge(spans []span, p []noted, at Snapshot) []span {
	all := spans[:1]
	for _, s := range spans[1:] {
		last := &all[len(all)-1]
		a, b := &p[last.row], &p[s.row]
		ended := (a.Tx == 0 || at.hadEnded(a.Tx)) && (b.Tx == 0 || at.hadEnded(b.Tx))
		if ended && last.last+1 == s.first && a.Process == b.Process && a.Generation == b.Generation && a.stale == b.stale {
			last.last, last.row = s.last, max(last.row, s.row)
			p[last.row].openTill = slices.MaxFunc([]time.Time{a.openTill, b.openTill}, time.Time.Compare)
		} else {
			all = append(all, s)
		}
	}
	return all
}

// cut gives [first, last] to a row. It returns the parts with the rows that had them before, or -1, and all
// spans afterwards.
func cut(spans []span, first, last int64, row int) (parts, rest []span) {
	from, _ := slices.BinarySearchFunc(spans, first, func(s span, at int64) int { return cmp.Compare(s.last, at) })
	to, at := from, first
	var replaced []span
	for ; to < len(spans) && spans[to].first <= last; to++ {
		s := spans[to]
		if s.first < first {
			replaced = append(replaced, span{s.first, first - 1, s.row})
		}
		if s.first > at {
			parts = append(parts, span{at, s.first - 1, -1})
		}
		parts = append(parts, span{max(s.first, first), min(s.last, last), s.row})
		at = s.last + 1
	}
	if at <= last {
		parts = append(parts, span{at, last, -1})
	}
	replaced = append(replaced, span{first, last, row})
	if to > from {
		if s := spans[to-1]; s.last > last {
			replaced = append(replaced, span{last + 1, s.last, s.row})
		}
	}
	return parts, slices.Replace(spans, from, to, replaced...)
}

// repeat counts a part of row i, which another row had applied.
func (j *judge) repeat(p []noted, s span, i int) {
	was, r := p[s.row], p[i]
	e := Episode{Partition: r.partition(), From: s.first, To: s.last, Messages: s.last - s.first + 1, Transactions: 1,
		Before: was.Process, Process: r.Process, First: r.At, Last: r.At, row: i}
	switch {
	case was.Process == r.Process:
		e.Kind = SameProcess
	case was.stale, r.stale, r.openBefore(was), was.Tx != r.Tx && !r.Snapshot.hadEnded(was.Tx):
		e.Kind = SecondOwner
		e.BothFrom, e.BothUntil = both(p, s.row, i)
	default:
		e.Kind = Redelivered
	}
	j.report.Repeated[e.Kind] += e.Messages
	all := j.report.Episodes
	if len(all) > 0 {
		if last := &all[len(all)-1]; last.continues(e) {
			if last.row != i {
				last.Transactions++
			}
			last.To, last.Last, last.row = max(last.To, e.To), e.Last, i
			last.Messages += e.Messages
			if e.BothUntil.After(last.BothUntil) {
				last.BothUntil = e.BothUntil
			}
			return
		}
	}
	j.report.Episodes = append(all, e)
}

func (e Episode) continues(next Episode) bool {
	return e.Partition == next.Partition && e.Kind == next.Kind && e.Before == next.Before && e.Process == next.Process &&
		next.From >= e.From && (next.From == e.To+1 || next.row-e.row <= 1)
}

// both returns the time in which two processes believed that they owned the partition: from the first row of
// a later owner until the last sign of the one before.
func both(p []noted, earlierRow, laterRow int) (from, until time.Time) {
	zombie, owner := p[earlierRow], p[laterRow]
	if !zombie.stale && (owner.stale || owner.openBefore(zombie)) {
		zombie, owner = owner, zombie
	}
	from = owner.At
	if i := slices.IndexFunc(p, func(q noted) bool {
		return q.Process != zombie.Process && (zombie.stale && q.Generation > zombie.Generation || !zombie.stale && q.ID < zombie.ID && zombie.openBefore(q))
	}); i >= 0 {
		from = p[i].At
	}
	return from, slices.MaxFunc([]time.Time{zombie.At, zombie.openTill, from}, time.Time.Compare)
}

// byProducer counts the messages of a row whose id an earlier message at another offset has. Of those
// that were applied before, it counts nothing.
func (j *judge) byProducer(r Row, parts []span) (n int64) {
	fresh := !slices.ContainsFunc(parts, func(s span) bool { return s.row >= 0 })
	for i, id := range r.IDs {
		at := place{r.Number, r.First, r.Last, false}
		if r.exact() {
			at = place{r.Number, r.First + int64(i), r.First + int64(i), true}
		}
		first := fresh || at.exact && slices.ContainsFunc(parts, func(s span) bool { return s.row < 0 && s.first <= at.first && at.first <= s.last })
		was, known := j.seen[id]
		switch {
		case !known:
			j.seen[id] = at
		case first && (was.number != at.number || was.last < at.first || at.last < was.first || was == at && !at.exact):
			n++
		}
	}
	return n
}

func (j *judge) refuse(r Row, why Reason, position int64) {
	if r.Tx == 0 || !j.refused[r.Tx] {
		j.refused[r.Tx] = true
		j.report.Refused[why]++
	}
	rs := j.report.Refusals
	if n := len(rs) - 1; n >= 0 && r.Tx != 0 && r.Tx == j.lastRefused && rs[n].Partition == r.partition() && rs[n].To+1 == r.First {
		rs[n].To = r.Last
		return
	}
	j.lastRefused = r.Tx
	j.report.Refusals = append(rs, Refusal{r.partition(), r.At, r.Process, r.Generation, r.First, r.Last, why, position})
}
