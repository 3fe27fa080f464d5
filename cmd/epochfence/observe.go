package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/operate/observe"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// This file has the command observe: it reads what consumers without a fence have noted, and prints what
// package observe makes of it.

var errNotObserved = usage("observe works on PostgreSQL and SQLite")

type observeFlags struct {
	chosen
	since string
	limit uint
}

func (a *app) observe() *cobra.Command {
	c := &cobra.Command{
		Use: "observe", Short: "Report how often consumers without a fence are wrong", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usage("observe wants report or shadow") },
	}
	c.AddCommand(
		a.observing("report", "Report what was applied twice, out of order or not at all", `Judge what consumers without a fence have noted of their own transactions, with
select epochfence.observe(…) in PostgreSQL or a row of epochfence_observed in
SQLite. Exit code 3 if an effect was applied twice.

A row is a range: each run of offsets of which all were applied has its own.
It counts offsets, so transaction markers and compacted messages count as
messages. A gap may consist of them. Of a topic or a group that was deleted and
created again, say --since. A million rows of one partition take some 300 MB of
memory.`, a.printObserved),
		a.observing("shadow", "List the transactions that a fence would have refused", `List the transactions that a fence would have refused, the newest ones last, with
the position that it would have had. Nothing was refused. Exit code 3 if there
are any.`, a.printShadow))
	return c
}

func (a *app) observing(name, short, long string, people func(observe.Report, uint)) *cobra.Command {
	var f observeFlags
	c := &cobra.Command{
		Use: name, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.observed(c.Context(), f)
			if err != nil {
				return err
			}
			err = a.show(r, func() {
				if r.Transactions == 0 {
					a.say("Nothing was noted, or nothing that --group, --topic and --since select.\nSee epochfence observe report --help.")
					return
				}
				people(r, f.limit)
			})
			if name == "report" && r.AppliedTwice > 0 || name == "shadow" && len(r.Refusals) > 0 {
				err = errors.Join(errTrouble, err)
			}
			return err
		},
	}
	f.chosen.add(c.Flags())
	c.Flags().StringVar(&f.since, "since", "", "what was noted from this time on, such as 12:03 or -15m")
	c.Flags().UintVar(&f.limit, "limit", 20, "how many cases to list")
	return c
}

func (a *app) observed(ctx context.Context, f observeFlags) (observe.Report, error) {
	since, err := time.Time{}, error(nil)
	if f.since != "" {
		since, err = parseTime(f.since, time.Now())
	}
	if err != nil {
		return observe.Report{}, err
	}
	if _, err := a.operator(ctx); err != nil { // checks the version of the tables
		return observe.Report{}, err
	}
	watched, is := a.database.(interface {
		observations(ctx context.Context, f chosen, since time.Time, add func(observe.Row) bool) error
	})
	if !is {
		return observe.Report{}, errNotObserved
	}
	r := observe.Judge(func(add func(observe.Row) bool) { err = watched.observations(ctx, f.chosen, since, add) })
	return r, a.flags.secretive(err)
}

// observations reads rows in the order that observe.Judge wants.
func (p *postgres) observations(ctx context.Context, f chosen, since time.Time, add func(observe.Row) bool) error {
	schema := pgx.Identifier{cmp.Or(p.sink.Schema, pgsink.DefaultSchema)}.Sanitize()
	rows, err := p.pool.Query(ctx, `select id, at, group_name, topic, partition, first_offset, last_offset, generation, process, tx::text::bigint, snapshot::text, array_remove(ids, null), caught
		from `+schema+`.observations(nullif($1::text, ''), nullif($2::text, ''), $3::timestamptz)`, f.group, f.topic, since)
	if err != nil {
		return err
	}
	var r observe.Row
	var snapshot string
	_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.At, &r.Group, &r.Topic, &r.Number, &r.First, &r.Last, &r.Generation, &r.Process, &r.Tx, &snapshot, &r.IDs, &r.Caught}, func() (err error) {
		if r.Snapshot, err = observe.ParseSnapshot(snapshot); err == nil {
			add(r)
		}
		return err
	})
	return err
}

// observations reads rows in the order that observe.Judge wants. SQLite has one writer, so they were noted in the
// order of commits.
func (s *sqlite) observations(ctx context.Context, f chosen, since time.Time, add func(observe.Row) bool) error {
	rows, err := s.db.QueryContext(ctx, `SELECT id, at, group_name, topic, number, first_offset, last_offset, generation, process, coalesce(ids, '[]'), caught
		FROM `+cmp.Or(s.sink.TablePrefix, sqlschema.DefaultPrefix)+`observed
		WHERE (?1 = '' OR group_name = ?1) AND (?2 = '' OR topic = ?2) AND at >= ?3 AND first_offset <= last_offset ORDER BY group_name, topic, number, id`, f.group, f.topic, since.UTC().Format("2006-01-02T15:04:05.000Z"))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	seed := maphash.MakeSeed()
	for rows.Next() {
		var r observe.Row
		var at string
		var ids []byte
		var texts []string
		err := rows.Scan(&r.ID, &at, &r.Group, &r.Topic, &r.Number, &r.First, &r.Last, &r.Generation, &r.Process, &ids, &r.Caught)
		if err == nil {
			r.At, err = time.Parse(time.RFC3339Nano, at)
		}
		if err != nil {
			return fmt.Errorf("row %d of the observed: %w", r.ID, err)
		}
		r.UnreadIDs = json.Unmarshal(ids, &texts) != nil
		for _, id := range slices.DeleteFunc(texts, func(id string) bool { return id == "" }) {
			r.IDs = append(r.IDs, int64(maphash.String(seed, id)))
		}
		add(r)
	}
	return rows.Err()
}

func (a *app) printObserved(r observe.Report, limit uint) {
	rests := count(r.Transactions, r.Unit)
	if r.AppliedTwice == 0 {
		a.say("No effect was applied twice, in %s.", rests)
	} else {
		a.say("WRONG: applied twice: %s, in %s.", count(r.AppliedTwice, "effect"), rests)
	}
	logs := r.Logs
	if len(logs) > 8 {
		logs = append(logs[:8:8], "…")
	}
	a.say("%s of %s; processes: %d; %s to %s\n", count(r.Partitions, "partition"), printable(strings.Join(logs, ", ")), r.Processes, stamp(r.First), stamp(r.Last))
	if r.UnreadIDs > 0 {
		a.say("%s with ids that are no JSON list of texts, and were skipped\n", count(r.UnreadIDs, "row"))
	}
	t := newTable(">MESSAGES", "APPLIED AGAIN, AND WHY")
	t.row(r.Repeated[observe.SameProcess], "the same process got them again")
	t.row(r.Repeated[observe.SecondOwner], "two processes believed that the partition was theirs")
	t.row(r.Repeated[observe.Redelivered], "the next owner began too low: an offset was not committed, or reset")
	t.row(r.Repeated[observe.Producer], "the producer wrote them twice (where ids were given)")
	t.row(r.Caught, "of these, a dedupe table caught")
	t.print(a.out)
	a.say("")
	t = newTable(">MESSAGES", "IN WRONG ORDER OR NOT AT ALL")
	t.row(r.Reordered, "were first applied after a later one")
	t.row(r.Missing, fmt.Sprintf("were applied by nobody, in %s", count(r.Gaps, "gap")))
	t.print(a.out)
	a.say("")
	t = newTable(">"+strings.ToUpper(r.Unit)+"S", "THAT A FENCE WOULD HAVE REFUSED")
	t.row(r.Refused[observe.Stale], "of a process that had lost the partition")
	t.row(r.Refused[observe.Applied], "with messages that were applied")
	t.row(r.Refused[observe.Order], "after a later message was applied")
	t.print(a.out)
	es := slices.SortedStableFunc(slices.Values(r.Episodes), func(x, y observe.Episode) int { return cmp.Compare(y.Messages, x.Messages) })
	for i, e := range es[:min(limit, uint(len(es)))] {
		if i == 0 {
			a.say("\nThe largest of %s:", count(int64(len(es)), "case"))
		}
		a.say("\n%s, offsets %d to %d: %s, %s", printable(e.Partition), e.From, e.To, e.Kind, count(e.Messages, "message"))
		a.say("  applied by %s", printable(e.Before))
		a.say("  again by   %s, %s to %s", printable(e.Process), stamp(e.First), stamp(e.Last))
		if !e.BothFrom.IsZero() {
			const layout = "2006-01-02T15:04:05.000Z"
			a.say("  both owned %s to %s", e.BothFrom.UTC().Format(layout), e.BothUntil.UTC().Format(layout))
		}
	}
}

func (a *app) printShadow(r observe.Report, limit uint) {
	if len(r.Refusals) == 0 {
		a.say("A fence would have refused none of %s.", count(r.Transactions, r.Unit))
		return
	}
	rs := slices.SortedStableFunc(slices.Values(r.Refusals), func(x, y observe.Refusal) int { return x.At.Compare(y.At) })
	a.say("A fence would have refused %d of %s.\n", r.Refused[observe.Stale]+r.Refused[observe.Applied]+r.Refused[observe.Order], count(r.Transactions, r.Unit))
	if more := len(rs) - int(min(limit, uint(len(rs)))); more > 0 {
		a.say("%d earlier ones are not listed (--limit).\n", more)
	}
	t := newTable("AT", "PARTITION", ">FROM", ">TO", ">POSITION", "REASON", "PROCESS")
	for _, x := range rs[len(rs)-int(min(limit, uint(len(rs)))):] {
		t.row(stamp(x.At), x.Partition, x.From, x.To, x.Position, x.Reason, x.Process)
	}
	t.print(a.out)
}
