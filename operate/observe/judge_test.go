package observe_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/operate/observe"
)

// rows reads a history, a row a line, in the order in which they were noted, a second apart:
//
//	process/generation partition first-last key=value…
//
// Keys: open (the numbers of lines whose transactions have not ended), tx (the line whose transaction this is), xid
// (another number of its transaction), ids, caught.
func rows(t *testing.T, history string) (rs []observe.Row) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(history), "\n") {
		n := int64(i + 1)
		f := strings.Fields(line)
		r := observe.Row{ID: n, At: at(n), Group: "shipping", Topic: "orders", Tx: uint64(n), Generation: -1, Snapshot: observe.Snapshot{Min: 1, Max: uint64(n)}}
		process, generation, known := strings.Cut(f[0], "/")
		r.Process = process
		if known {
			scan(t, generation, "%d", &r.Generation)
		}
		scan(t, f[1], "%d", &r.Number)
		scan(t, f[2], "%d-%d", &r.First, &r.Last)
		for _, kv := range f[3:] {
			k, v, _ := strings.Cut(kv, "=")
			for one := range strings.SplitSeq(v, ",") {
				var x int64
				scan(t, one, "%d", &x)
				switch k {
				case "open":
					r.Snapshot.Open = append(r.Snapshot.Open, uint64(x))
				case "tx":
					r.Tx, r.Snapshot.Max = uint64(x), uint64(x)
				case "xid":
					r.Tx, r.Snapshot.Max = uint64(x), 100
				case "ids":
					r.IDs = append(r.IDs, x)
				case "caught":
					r.Caught = x
				}
			}
		}
		rs = append(rs, r)
	}
	slices.SortStableFunc(rs, func(a, b observe.Row) int { return int(a.Number - b.Number) })
	return rs
}

func at(second int64) time.Time { return time.Date(2026, 11, 29, 12, 0, int(second), 0, time.UTC) }

func scan(t *testing.T, text, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(text, format, into...); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
}

// said is a report in short, without zeros.
func said(r observe.Report) string {
	var b strings.Builder
	say := func(what string, n int64) {
		if n > 0 {
			fmt.Fprintf(&b, "%s %d; ", what, n)
		}
	}
	for _, k := range observe.Kinds {
		say(string(k), r.Repeated[k])
	}
	say("caught", r.Caught)
	say("twice", r.AppliedTwice)
	say("missing", r.Missing)
	say("gaps", r.Gaps)
	say("reordered", r.Reordered)
	for _, why := range observe.Reasons {
		say("refused as "+string(why), r.Refused[why])
	}
	for _, e := range r.Episodes {
		fmt.Fprintf(&b, "%s %d-%d by %s after %s in %d", e.Kind, e.From, e.To, e.Process, e.Before, e.Transactions)
		if !e.BothFrom.IsZero() {
			fmt.Fprintf(&b, ", both %d-%d", e.BothFrom.Second(), e.BothUntil.Second())
		}
		b.WriteString("; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestAHistoryIsJudgedAsWhatHappened(t *testing.T) {
	for name, c := range map[string]struct{ history, want string }{
		"nothing is wrong": {`
			a/1 0 0-9
			a/1 1 0-9
			a/1 0 10-19
			b/2 1 10-19`, ""},
		"transactions of the same process that overlap in time are no second owner": {`
			a/1 0 0-9
			a/1 0 10-19 open=1`, ""},
		"a process that is given its own messages again": {`
			a/1 0 0-9
			a/1 0 10-19
			a/3 0 10-29`, "same process 10; twice 10; refused as applied 1; same process 10-19 by a after a in 1"},
		"a message twice in one transaction": {`
			a/1 0 0-9
			a/1 0 9-9 tx=1`, "same process 1; twice 1; refused as applied 1; same process 9-9 by a after a in 1"},
		"the next owner begins at an offset that was committed before": {`
			a/1 0 0-9
			a/1 0 10-19
			b/2 0 10-14
			b/2 0 15-29`, "redelivered 10; twice 10; refused as applied 2; redelivered 10-19 by b after a in 2"},
		"frozen between the poll and its statement, thawed after another took over": {`
			a/1 0 0-9
			b/2 0 10-19
			b/2 0 20-29
			a/1 0 10-14
			a/1 0 15-19
			b/2 0 30-39`, "second owner 10; twice 10; refused as stale 2; second owner 10-19 by a after b in 2, both 2-5"},
		"frozen between its statement and the commit": {`
			a/1 0 0-9
			b/2 0 0-9 open=1
			b/2 0 10-19 open=1
			b/2 0 20-29`, "second owner 10; twice 10; refused as stale 1; second owner 0-9 by b after a in 1, both 2-3"},
		"frozen so, and the group's generation is not known": {`
			a 0 0-9
			b 0 0-9 open=1
			b 0 10-19 open=1
			b 0 20-29`, "second owner 10; twice 10; refused as applied 1; second owner 0-9 by b after a in 1, both 2-3"},
		"frozen between its first write and its statement: its transaction is older than that of the other": {`
			a 0 0-9 xid=3
			c 0 10-19 xid=4
			b 0 20-29 xid=7
			b 0 30-39 xid=8
			a 0 35-39 xid=6`, "second owner 5; twice 5; refused as applied 1; second owner 35-39 by a after b in 1, both 3-5"},
		"frozen so, and the other one had to wait for it": {`
			b 0 0-9 xid=6 open=7
			a 0 0-9 xid=7`, "second owner 10; twice 10; refused as applied 1; second owner 0-9 by a after b in 1, both 1-2"},
		"frozen before, and the generation is not known: nothing proves a second owner": {`
			b 0 0-9
			a 0 0-4`, "redelivered 5; twice 5; refused as applied 1; redelivered 0-4 by a after b in 1"},
		"a second owner is ahead of the first": {`
			b/2 0 0-9
			a/1 0 10-14
			b/2 0 10-19`, "second owner 5; twice 5; refused as stale 1; second owner 10-14 by b after a in 1, both 1-2"},
		"what a second owner repeated is redelivered to a third": {`
			a/1 0 0-9
			b/2 0 10-19
			a/1 0 10-19
			c/3 0 10-19`, "second owner 10; redelivered 10; twice 20; refused as stale 1; refused as applied 1; " +
			"second owner 10-19 by a after b in 1, both 2-3; redelivered 10-19 by c after b in 1"},
		"a second owner that repeats nothing": {`
			b/2 0 0-9
			a/1 0 10-14
			b/2 0 15-19`, "refused as stale 1"},
		"messages between those that were applied": {`
			a/1 0 0-9
			a/1 0 20-29
			b/2 0 5-24`, "redelivered 10; twice 10; reordered 10; refused as applied 1; redelivered 5-24 by b after a in 1"},
		"a case goes on over offsets that do not exist": {`
			a/1 0 0-4
			a/1 0 5-9
			a/1 0 15-19
			b/2 0 0-9
			b/2 0 15-24`, "redelivered 15; twice 15; missing 5; gaps 1; refused as applied 2; redelivered 0-19 by b after a in 2"},
		"offsets are reset": {`
			a/1 0 0-9
			b/2 0 10-19
			c/3 0 0-4
			c/3 0 5-14
			c/3 0 15-24`, "redelivered 20; twice 20; refused as applied 3; redelivered 0-9 by c after a in 2; redelivered 10-19 by c after b in 2"},
		"a group that is deleted counts its generations anew": {`
			a/7 0 0-9
			b/8 0 10-19
			b/1 0 20-29
			a/2 0 30-39`, ""},
		"a group that is deleted, and one process is left": {`
			a/7 0 0-9
			b/8 0 10-19
			b/1 0 20-29
			b/1 0 30-39`, ""},
		"a transaction of an earlier generation does not make the group a new one": {`
			b/7 0 0-9
			a/6 0 10-19
			a/5 0 20-29
			b/7 0 30-39`, "refused as stale 2"},
		"nor does the last row": {`
			b/7 0 0-9
			a/6 0 10-19
			a/5 0 20-29`, "refused as stale 2"},
		"nor do several": {`
			b/7 0 0-9
			a/6 0 10-19
			a/5 0 20-29
			a/5 0 30-39
			c/8 0 40-49`, "refused as stale 3"},
		"parallel workers of one process, in two generations": {`
			b/4 0 0-9
			a/6 0 10-19
			a/5 0 20-29
			a/6 0 30-39
			b/7 0 40-49`, ""},
		"a partition that comes back is no second owner": {`
			a/1 0 0-9
			b/2 0 10-19
			a/3 0 20-29
			b/4 0 30-39`, ""},
		"other partitions of a frozen process": {`
			a/1 0 0-9
			b/2 0 10-19
			a/2 1 0-9
			a/2 1 10-19`, ""},
		"the dedupe table catches all of it": {`
			a/1 0 0-9
			b/2 0 5-14 caught=5`, "redelivered 5; caught 5; refused as applied 1; redelivered 5-9 by b after a in 1"},
		"the dedupe table has forgotten some": {`
			a/1 0 0-9
			b/2 0 5-14 caught=3`, "redelivered 5; caught 3; twice 2; refused as applied 1; redelivered 5-9 by b after a in 1"},
		"a count of caught messages that cannot be": {`
			a/1 0 0-9
			b/2 0 5-14 caught=-3
			b/2 0 15-19 caught=-3`, "redelivered 5; twice 5; refused as applied 1; redelivered 5-9 by b after a in 1"},
		"the dedupe table catches what was applied before anything was noted": {`
			a/1 0 5-14 caught=5`, ""},
		"the producer writes a message twice": {`
			a/1 0 0-2 ids=10,11,12
			a/1 0 3-4 ids=12,13
			a/1 1 0-0 ids=10`, "producer 2; twice 2"},
		"and twice into one transaction": {`
			a/1 0 0-2 ids=10,11,10
			a/1 1 0-9 ids=20,21,20`, "producer 2; twice 2"},
		"a message that is delivered twice was not written twice": {`
			a/1 0 0-2 ids=10,11,12
			b/2 0 1-3 ids=11,12,13`, "redelivered 2; twice 2; refused as applied 1; redelivered 1-2 by b after a in 1"},
		"what was written twice and is delivered again counts once": {`
			a/1 0 0-2 ids=10,11,10
			b/2 0 2-3 ids=10,13`, "redelivered 1; producer 1; twice 2; refused as applied 1; redelivered 2-2 by b after a in 1"},
		"ids of messages whose offsets are not known": {`
			a/1 0 0-9 ids=10,11
			a/1 0 10-19 ids=11,12
			b/2 0 15-29 ids=11,12`, "redelivered 5; producer 1; twice 6; refused as applied 1; redelivered 15-19 by b after a in 1"},
		"offsets that nobody applied": {`
			a/1 0 0-9
			a/1 0 15-19
			a/1 0 30-39`, "missing 15; gaps 2"},
		"parallel workers commit out of order": {`
			a/1 0 0-9
			a/1 0 20-29
			a/1 0 10-19
			a/1 0 30-39`, "reordered 10; refused as out of order 1"},
		"a transaction with several partitions is refused once": {`
			a/1 0 0-9
			a/1 1 0-9
			b/2 0 0-9
			b/2 1 0-9 tx=3`, "redelivered 20; twice 20; refused as applied 1; redelivered 0-9 by b after a in 1; redelivered 0-9 by b after a in 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := said(observe.Judge(slices.Values(rows(t, c.history)))); got != c.want {
				t.Errorf("said\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestAReportSaysWhatItRestsOn(t *testing.T) {
	r := observe.Judge(slices.Values(rows(t, `
		a/1 0 0-9
		a/1 1 0-9 tx=1
		b/2 0 10-19`)))
	if r.Transactions != 2 || r.Partitions != 2 || r.Processes != 2 || !slices.Equal(r.Logs, []string{"shipping/orders"}) || !r.First.Equal(at(1)) || !r.Last.Equal(at(3)) {
		t.Errorf("%+v", r)
	}
	serial := rows(t, "a/1 0 0-9\na/1 0 10-19")
	for i := range serial {
		serial[i].Tx = 0
	}
	if r := observe.Judge(slices.Values(serial)); r.Transactions != 2 {
		t.Errorf("%d transactions where each row is one", r.Transactions)
	}
	if r := observe.Judge(slices.Values([]observe.Row(nil))); r.Transactions != 0 || r.AppliedTwice != 0 {
		t.Errorf("of nothing: %+v", r)
	}
}

func TestARefusalSaysWhyAndAgainstWhichPosition(t *testing.T) {
	got := observe.Judge(slices.Values(rows(t, `
		a/1 3 0-9
		b/2 3 10-19
		a/1 3 10-14
		b/2 3 10-24`))).Refusals
	want := []observe.Refusal{
		{Partition: "shipping/orders/3", At: at(3), Process: "a", Generation: 1, From: 10, To: 14, Reason: observe.Stale, Position: 20},
		{Partition: "shipping/orders/3", At: at(4), Process: "b", Generation: 2, From: 10, To: 24, Reason: observe.Applied, Position: 20},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
}

func TestARefusedTransactionWithARowAMessageIsListedOnce(t *testing.T) {
	var got []string
	for _, r := range observe.Judge(slices.Values(rows(t, `
		a/1 3 0-9
		a/1 4 0-9
		b/2 3 5-5
		b/2 3 6-6 tx=3
		b/2 3 7-7 tx=3
		b/2 3 9-9 tx=3
		b/2 4 8-8 tx=3
		b/2 4 9-9`))).Refusals {
		got = append(got, fmt.Sprintf("%s %d-%d", r.Partition, r.From, r.To))
	}
	if want := []string{"shipping/orders/3 5-7", "shipping/orders/3 9-9", "shipping/orders/4 8-8", "shipping/orders/4 9-9"}; !slices.Equal(got, want) {
		t.Errorf("refused %q, want %q", got, want)
	}
}

// Whatever the rows: each offset is counted as often as it was applied after the first time, and as missing if never.
func TestRepeatsAndGapsAddUpForAnyRows(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 44))
		var rs []observe.Row
		times := map[int64]int64{}
		n, offsets := 1+rng.IntN(20), int64(60)
		if seed%50 == 0 { // enough spans to be merged
			n, offsets = 400, 3000
		}
		for i := range int64(n) {
			first := rng.Int64N(offsets)
			r := observe.Row{ID: i, At: at(i), Tx: uint64(i + 1), First: first, Last: first + rng.Int64N(15), Generation: rng.Int64N(4) - 1,
				Process: string(rune('a' + rng.IntN(3))), Snapshot: observe.Snapshot{Min: 1, Max: uint64(i + 1)}}
			for o := range uint64(i) {
				if rng.IntN(3) == 0 {
					r.Snapshot.Open = append(r.Snapshot.Open, o+1)
				}
			}
			for o := r.First; o <= r.Last; o++ {
				times[o]++
			}
			rs = append(rs, r)
		}
		var lowest, highest, repeated, missing int64 = 1 << 30, 0, 0, 0
		for o, n := range times {
			lowest, highest, repeated = min(lowest, o), max(highest, o), repeated+n-1
		}
		for o := lowest; o <= highest; o++ {
			if times[o] == 0 {
				missing++
			}
		}
		r := observe.Judge(slices.Values(rs))
		var episodes int64
		for _, e := range r.Episodes {
			episodes += e.Messages
			if e.BothUntil.Before(e.BothFrom) {
				t.Fatalf("seed %d: %+v", seed, e)
			}
		}
		if r.AppliedTwice != repeated || episodes != repeated || r.Missing != missing {
			t.Fatalf("seed %d: %d applied twice, %d in episodes, %d missing; want %d and %d", seed, r.AppliedTwice, episodes, r.Missing, repeated, missing)
		}
	}
}

func TestASnapshotIsReadAsPostgreSQLWritesIt(t *testing.T) {
	s, err := observe.ParseSnapshot("10:20:12,15")
	if want := (observe.Snapshot{Min: 10, Max: 20, Open: []uint64{12, 15}}); err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v; want %+v", s, err, want)
	}
	if s, err = observe.ParseSnapshot("10:10:"); err != nil || s.Min != 10 || s.Max != 10 || len(s.Open) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, wrong := range []string{"", "10", "a:20:", "10:20:x", "10:20:-1"} {
		if _, err := observe.ParseSnapshot(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}
