package consumertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

// This file reads, compares and puts back rows. What is no fault is decided here: which columns may differ, and what a
// number that the database has given is worth. A row is the text of its values as literals of SQL.

// Database is the database of a test: what [SQLite], [Items] or pgtables.Of returns.
type Database interface {
	// Lock fails if another Check runs on the database, unless the database has no such locks.
	Lock(ctx context.Context) (unlock func(), err error)
}

// Tables is a [Database] that is asked in SQL.
type Tables interface {
	Database
	Dialect() Dialect

	// Query returns rows of texts, as the transaction tx of a handler sees them or, if tx is nil, as they are committed.
	Query(ctx context.Context, tx any, text string) ([][]string, error)

	// Restore runs statements in a transaction in which neither triggers nor foreign keys act.
	Restore(ctx context.Context, texts []string) error
}

// contents are the rows of a database. Those that are compared are lines.
type contents interface {
	// open returns the rows as they are, or an error if the database is in use.
	open(ctx context.Context, o Options, mine []epoch.Partition) (rows [][]string, err error)
	read(ctx context.Context, tx any) ([][]string, error)
	restore(ctx context.Context, rows [][]string) error
	lines(rows [][]string, repeated bool) map[string][]line
	text(rows [][]string) string // without the sink's own rows
}

// Dialect is how [Tables] are asked.
type Dialect struct {
	// Columns lists the columns of all tables that are not computed: the table as Options have it and as SQL has it, the column, flags, and the
	// table and column that it refers to, with a dot between them, and its default. The flags are n if the database
	// numbers the rows, k if it does so without gaps, o if the table is the sink's.
	Columns string

	Quote      string // makes a literal of a column, with %s for the column
	Separator  string // the character U+001F
	Only       string // before a table whose heirs are not meant
	Overriding string // in an INSERT that sets all columns
	Parallel   bool   // a claim ends the transaction under the claim before
}

// tables are those of a database. The compared ones come first.
type tables struct {
	db       Tables
	dialect  Dialect
	all      []table
	compared int
	ignored  map[string]bool
	start    map[string]bool // "table.column=value" of the rows before the test, for columns that are numbered
}

type table struct {
	name, sql string
	sinks     bool // it is the sink's
	columns   []column
}

type column struct {
	name, flags, refers string
	varies              bool // its default does
}

const separator = "\x1f"

// mostRows is far above what a test needs, and below what a database in use has.
const mostRows = 10_000

const ownDatabase = "give the test a database of its own, as rows are deleted and put back"

var (
	text = regexp.MustCompile(`'(?:[^']|'')*'`)
	call = regexp.MustCompile(`(?i)\b(?:now|(?:clock|statement|transaction)_timestamp|timeofday|\w*random\w*|uuid_generate\w*|uuid_?v\d|txid_current|pg_current_xact_id)\s*\(` +
		`|\b(?:current_(?:date|time|timestamp)|localtime|localtimestamp)\b` +
		`|\b(?:date|time|datetime|julianday|unixepoch|strftime)\s*\(\s*(?:\)|(?:''\s*,\s*)?'now')`) // of SQLite
)

// varies reports whether a default reads a clock or random numbers.
func varies(expression string) bool {
	return call.MatchString(text.ReplaceAllStringFunc(expression, func(s string) string {
		if strings.EqualFold(s, "'now'") {
			return "'now'"
		}
		return "''"
	}))
}

func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (ts *tables) open(ctx context.Context, o Options, mine []epoch.Partition) (start [][]string, err error) {
	ts.dialect, ts.ignored = ts.db.Dialect(), map[string]bool{}
	rows, err := ts.db.Query(ctx, nil, ts.dialect.Columns)
	if err != nil {
		return nil, fmt.Errorf("list the columns: %w", err)
	}
	known := map[string]bool{}
	for _, r := range rows {
		if !known[r[0]] {
			ts.all = append(ts.all, table{name: r[0], sql: r[1], sinks: strings.Contains(r[3], "o")})
		}
		last := &ts.all[len(ts.all)-1]
		last.columns = append(last.columns, column{r[2], r[3], r[4], varies(r[5])})
		known[r[0]], known[r[0]+"."+r[2]] = true, true
	}
	for _, n := range slices.Concat(o.Tables, o.Ignore) {
		if !known[n] {
			return nil, fmt.Errorf("the options name %q, which the database does not have", n)
		}
		ts.ignored[n] = slices.Contains(o.Ignore, n)
	}
	own := func(t table) bool {
		return t.sinks || len(o.Tables) > 0 && !slices.Contains(o.Tables, t.name)
	}
	slices.SortStableFunc(ts.all, func(a, b table) int { return cmp.Compare(strconv.FormatBool(own(a)), strconv.FormatBool(own(b))) })
	for _, t := range ts.all {
		if t.sinks && slices.Contains(o.Tables, t.name) {
			return nil, fmt.Errorf("Options.Tables names %q, which is the sink's", t.name)
		}
		if !own(t) {
			ts.compared++
		}
	}
	for range ts.all { // what refers to an ignored column is ignored, also over several tables
		for _, t := range ts.all {
			for _, c := range t.columns {
				n := t.name + "." + c.name
				ts.ignored[n] = ts.ignored[n] || ts.ignored[c.refers] || c.varies
			}
		}
	}
	if err = ts.refuse(ctx, mine); err == nil {
		start, err = ts.read(ctx, nil)
	}
	ts.begin(start)
	return start, err
}

func (ts *tables) text(rows [][]string) string {
	var b strings.Builder
	for i, t := range ts.all {
		if !t.sinks { // the sink's have the time of the claim
			b.WriteString(strings.Join(rows[i], separator))
		}
	}
	return b.String()
}

// refuse fails if the database is in use, as what others write would be put back too.
func (ts *tables) refuse(ctx context.Context, mine []epoch.Partition) error {
	for _, t := range ts.all {
		more, err := ts.db.Query(ctx, nil, fmt.Sprintf("SELECT 'a' FROM %s%s LIMIT 1 OFFSET %d", ts.dialect.Only, t.sql, mostRows))
		if err != nil {
			return fmt.Errorf("count the rows of %s: %w", t.name, err)
		}
		if len(more) > 0 {
			return fmt.Errorf("%s has more than %d rows: %s, whichever tables Options.Tables names", t.name, mostRows, ownDatabase)
		}
		if !t.sinks || t.columns[0].name != "group_name" || !strings.HasSuffix(t.name, "fence") {
			continue
		}
		fences, err := ts.db.Query(ctx, nil, fmt.Sprintf("SELECT group_name, topic, CAST(%s AS text) FROM %s", t.columns[2].name, t.sql))
		if err != nil {
			return fmt.Errorf("read %s: %w", t.name, err)
		}
		for _, f := range fences {
			if n, _ := strconv.Atoi(f[2]); !slices.Contains(mine, epoch.Partition{Group: f[0], Topic: f[1], Number: int32(n)}) {
				return fmt.Errorf("%s has a fence of %s, which is no partition of the messages: %s", t.name, strings.Join(f, "/"), ownDatabase)
			}
		}
	}
	return nil
}

// begin keeps which numbers the rows had.
func (ts *tables) begin(rows [][]string) {
	ts.start = map[string]bool{}
	for i, all := range rows {
		t := ts.all[i]
		for _, r := range all {
			for j, v := range strings.Split(r, separator) {
				if c := t.columns[j]; strings.ContainsAny(c.flags, "nk") {
					ts.start[t.name+"."+c.name+"="+v] = true
				}
			}
		}
	}
}

// read returns the rows of all tables or, if tx is not nil, those that tx sees of the compared tables.
func (ts *tables) read(ctx context.Context, tx any) ([][]string, error) {
	read := ts.all
	if tx != nil {
		read = ts.all[:ts.compared]
	}
	all, selects := make([][]string, len(ts.all)), []string(nil)
	for i, t := range read {
		var values []string
		for _, c := range t.columns {
			values = append(values, fmt.Sprintf(ts.dialect.Quote, quoted(c.name)))
		}
		selects = append(selects, fmt.Sprintf("SELECT '%d', %s FROM %s%s", i, strings.Join(values, "||"+ts.dialect.Separator+"||"), ts.dialect.Only, t.sql))
	}
	if len(selects) == 0 {
		return all, errors.New("there are no tables to compare")
	}
	rows, err := ts.db.Query(ctx, tx, strings.Join(selects, " UNION ALL "))
	if err != nil {
		return nil, fmt.Errorf("read the tables: %w", err)
	}
	for _, r := range rows {
		i, _ := strconv.Atoi(r[0])
		if n := strings.Count(r[1], separator) + 1; n != len(read[i].columns) {
			return nil, fmt.Errorf("read %s: a value has the character U+001F, which separates values here", read[i].name)
		}
		all[i] = append(all[i], r[1])
	}
	return all, nil
}

// restore makes the rows what they were.
func (ts *tables) restore(ctx context.Context, rows [][]string) error {
	now, err := ts.read(ctx, nil)
	if err != nil {
		return err
	}
	var texts []string
	for i, t := range ts.all {
		if slices.Equal(now[i], rows[i]) {
			continue
		}
		var columns []string
		for _, c := range t.columns {
			columns = append(columns, quoted(c.name))
		}
		texts = append(texts, "DELETE FROM "+ts.dialect.Only+t.sql)
		for _, r := range rows[i] {
			texts = append(texts, fmt.Sprintf("INSERT INTO %s (%s) %s VALUES (%s)", t.sql, strings.Join(columns, ", "), ts.dialect.Overriding, strings.ReplaceAll(r, separator, ", ")))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	if err := ts.db.Restore(ctx, texts); err != nil {
		return fmt.Errorf("put the rows back: %w", err)
	}
	now, err = ts.read(ctx, nil)
	for i := range now {
		if !slices.Equal(slices.Sorted(slices.Values(now[i])), slices.Sorted(slices.Values(rows[i]))) {
			err = errors.Join(err, fmt.Errorf("put the rows back: those of %s are NOT what they were", ts.all[i].name))
		}
	}
	return err
}

// line is a row as it is compared. Its cells have the names of their columns.
type line []string

func (l line) String() string { return strings.Join(l, " ") }

// number returns the whole number that a literal is.
func number(literal string) (int64, bool) {
	n, err := strconv.ParseInt(strings.Trim(literal, "'"), 10, 64)
	return n, err == nil
}

// lines returns the rows of each compared table, in order. Numbers that the database gives to new rows are left out,
// and a reference has the row instead of its number: partitions have no order, and in PostgreSQL a rollback leaves gaps. If
// the same messages were applied to the same rows, repeated is true, and SQLite has given the same numbers.
func (ts *tables) lines(rows [][]string, repeated bool) map[string][]line {
	given, referred := map[string]bool{}, map[string]string{} // by column; by column and number
	for _, t := range ts.all[:ts.compared] {
		for _, c := range t.columns {
			given[t.name+"."+c.name] = strings.Contains(c.flags, "n") || !repeated && strings.Contains(c.flags, "k")
		}
	}
	all := map[string][]line{}
	for _, referring := range []bool{false, true} {
		for i, t := range ts.all[:ts.compared] {
			all[t.name] = nil
			for _, r := range rows[i] {
				var l line
				values := strings.Split(r, separator)
				for j, c := range t.columns {
					at, v := t.name+"."+c.name, values[j]
					to := c.refers + "=" + v
					if ts.ignored[at] || given[at] && !ts.start[at+"="+v] || given[c.refers] && !ts.start[to] && !referring {
						continue
					}
					if v = epochless(v); given[c.refers] && !ts.start[to] {
						v = referred[to]
					}
					l = append(l, c.name+"="+v)
				}
				for j, c := range t.columns {
					if at := t.name + "." + c.name; given[at] && !referring {
						referred[at+"="+values[j]] = "(" + l.String() + ")"
					}
				}
				all[t.name] = append(all[t.name], l)
			}
			slices.SortFunc(all[t.name], func(a, b line) int { return slices.Compare(a, b) })
		}
	}
	return all
}

// difference is what two states of a table do not share.
type difference struct {
	table       string
	first, then []line // only in one of them
}

// differences returns nil if one of the states is not known.
func (w *world[TX]) differences(first, then [][]string, repeated bool) (ds []difference) {
	if first == nil || then == nil {
		return nil
	}
	as, bs := w.rows.lines(first, repeated), w.rows.lines(then, repeated)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(as)), maps.Keys(bs))))) {
		if d := (difference{name, without(as[name], bs[name]), without(bs[name], as[name])}); len(d.first)+len(d.then) > 0 {
			ds = append(ds, d)
		}
	}
	return ds
}

// epochless returns a value, or a word for one that is an epoch.
func epochless(v string) string {
	if n, is := number(v); is && n > firstEpoch && n < firstEpoch+1_000_000 {
		return "(epoch)"
	}
	return v
}

// without returns the lines of a that b does not have as often.
func without(a, b []line) (rest []line) {
	count := map[string]int{}
	for _, l := range b {
		count[l.String()]++
	}
	for _, l := range a {
		if count[l.String()]--; count[l.String()] < 0 {
			rest = append(rest, l)
		}
	}
	return rest
}
