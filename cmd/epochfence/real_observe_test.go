package main

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/observe"
)

// The five steps of docs/move-over.md under load, with an old consumer that is wrong in each way that the report
// knows: a worker is frozen twice, an offset is reset, and the producer writes twice. The old workers note each
// delivery in a table of the test, so each figure of the report has its truth. What is new doubles nothing.
func TestRealProcessesAreMovedOverInTheFiveSteps(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	t.Run("with a dedupe table, once back from the canary", func(t *testing.T) {
		m := newMove(t, broker.Addr, observed)
		m.freezes("before its transaction")
		m.freezes("before its transaction") // with its transaction open, it would hold up all who insert its ids
		m.fault(observed)
		m.wantTruth()

		m.load() // canary: one of three, and back
		m.terminate(&m.old, 0)
		m.starts(beside)
		m.fenced()
		m.more(300)
		m.terminate(&m.new, 0)
		m.old = append(m.old, m.start(observed))
		m.executes("pause", "--group", m.topic)
		m.more(300)
		m.executes("resume", "--group", m.topic)
		m.terminate(&m.old, 0)
		m.starts(beside)
		m.more(300)

		m.does(exitOK, "protect", "public.shipment", "--execute") // enforce
		m.until("the old ones are counted", func() bool { return m.outside() > 0 })
		for len(m.old) > 0 {
			m.terminate(&m.old, 0)
			m.starts(beside)
		}
		m.wantNobodyOutside()

		m.does(exitOK, "protect", "public.shipment", "--refuse", "--execute") // remove the unsafe path
		m.wantEventually("after all are through", func(a answer) bool { return a.code == exitOK })
		m.goAlone()
		_, err := m.pool.Exec(t.Context(), "drop table seen")
		must(t, err)
		m.more(300)
		m.drain()
		if n := m.doubled(); n > 0 {
			t.Errorf("%d effects are doubled", n)
		}
	})
	t.Run("without a dedupe table", func(t *testing.T) {
		m := newMove(t, broker.Addr, bare)
		m.freezes("before its commit")
		m.freezes("before its transaction")
		m.fault(bare)
		m.wantTruth()
		before := m.doubled()
		if before == 0 {
			t.Error("the old consumer has doubled nothing: this test would not notice a report of nothing")
		}
		for len(m.old) > 0 {
			m.terminate(&m.old, 0)
		}
		m.load()
		for range 3 {
			m.starts(alone)
		}
		m.does(exitOK, "protect", "public.shipment", "--refuse", "--execute")
		m.more(300)
		m.wantNobodyOutside()
		m.kill(m.new[0])
		m.starts(alone)
		m.more(300)
		m.drain()
		if n := m.doubled(); n != before {
			t.Errorf("%d effects are doubled, and the old consumer had doubled %d", n, before)
		}
	})
}

// terminate ends a process of a list as a deployment does (SIGTERM).
func (m *moving) terminate(of *[]*worker, n int) {
	m.t.Helper()
	w := (*of)[n]
	*of = slices.Delete(slices.Clone(*of), n, n+1)
	w.signal(syscall.SIGTERM)
	if err := w.cmd.Wait(); err != nil {
		m.t.Errorf("%s: %v", w.name, err)
	}
}

// freezes has a worker stop at a place until the others have applied messages of all partitions, and then lets it
// continue until it has applied what it had polled.
func (m *moving) freezes(place string) {
	m.t.Helper()
	had := m.count("select count(*) from frozen")
	_, err := m.pool.Exec(m.t.Context(), "insert into to_freeze values ($1)", place)
	must(m.t, err)
	m.until("a worker to be frozen", func() bool { return m.count("select count(*) from frozen") > had })
	var name string
	must(m.t, m.pool.QueryRow(m.t.Context(), "select worker from frozen order by n desc limit 1").Scan(&name))
	at := slices.IndexFunc(m.old, func(w *worker) bool { return w.name == name })
	generation := m.count("select coalesce(max(generation), 0) from epochfence.observed where process = $1", name)
	m.until("others to apply messages of all partitions", func() bool {
		return m.count("select count(distinct partition) from epochfence.observed where process <> $1 and generation > $2", name, generation) == 6
	})
	m.more(100)
	thawed := m.count("select count(*) from delivery where thawed")
	_, err = m.pool.Exec(m.t.Context(), "update frozen set thawed = true")
	must(m.t, err)
	m.old[at].signal(syscall.SIGCONT)
	m.until("it applies what it had", func() bool { return m.count("select count(*) from delivery where thawed") > thawed })
	m.more(300)
}

const reset, twice = 150, 25

// fault has the producer write messages twice, ends all old workers, resets an offset, starts as many, and ends the load.
func (m *moving) fault(kind string) {
	m.t.Helper()
	var again []*kgo.Record
	for n := range twice {
		order := fmt.Sprint("order-", 10*n+1)
		again = append(again, &kgo.Record{Key: []byte(order), Value: []byte(order)})
	}
	must(m.t, m.client.ProduceSync(m.t.Context(), again...).FirstErr())
	for len(m.old) > 0 {
		m.terminate(&m.old, 0)
	}
	admin := kadm.NewClient(m.client)
	offsets, err := admin.FetchOffsets(m.t.Context(), m.topic)
	must(m.t, err)
	o, _ := offsets.Lookup(m.topic, 2)
	if o.At -= reset; o.At < 0 {
		m.t.Fatalf("partition 2 is at %d", o.At+reset)
	}
	var back kadm.Offsets
	back.Add(o.Offset)
	m.until("the group to be empty", func() bool {
		committed, err := admin.CommitOffsets(m.t.Context(), m.topic, back)
		return err == nil && committed.Error() == nil
	})
	for range 3 {
		m.old = append(m.old, m.start(kind))
	}
	m.more(300)
	m.stopLoad()
	m.until("all to be applied", func() bool { return m.effects() == m.sent.Load() && m.uncommittedDeliveries() == 0 })
}

// uncommittedDeliveries returns how many messages the group has not committed.
func (m *moving) uncommittedDeliveries() (n int64) {
	m.t.Helper()
	lag, err := kadm.NewClient(m.client).Lag(m.t.Context(), m.topic)
	must(m.t, err)
	for _, g := range lag {
		n += g.Lag.Total()
	}
	return n
}

// wantTruth compares each figure of the report with what the old workers have noted.
func (m *moving) wantTruth() {
	m.t.Helper()
	var r observe.Report
	m.reads(&r, "observe", "report", "--group", m.topic)
	m.t.Logf("instrument:\n%s", m.does(exitCodeOf(r.AppliedTwice), "observe", "report", "--limit", "6").out)
	m.t.Logf("shadow:\n%s", m.does(exitTrouble, "observe", "shadow", "--limit", "6").out)
	// A delivery repeats the last one by a worker that had not been frozen, or if there is none, the last one.
	repeats := func(which string) int64 {
		return m.count(`select count(*) from delivery d cross join lateral (select * from delivery e
			where (e.number, e.message_offset) = (d.number, d.message_offset) and e.id < d.id order by e.thawed, e.id desc limit 1) before
			where ` + which)
	}
	var refused int64
	for _, n := range r.Refused {
		refused += n
	}
	// A worker that is late in a rebalance, on a busy machine, is a second owner without a freeze: these only
	// move from one figure to another.
	second, stale := repeats("d.worker <> before.worker and (d.thawed or before.thawed)"), m.count("select count(distinct tx) from delivery where thawed")
	late, lateStale := max(0, r.Repeated[observe.SecondOwner]-second), max(0, r.Refused[observe.Stale]-stale)
	for _, c := range []struct {
		figure    string
		got, want int64
	}{
		{"transactions", r.Transactions, m.count("select count(distinct tx) from delivery")},
		{"partitions", r.Partitions, 6},
		{"processes", r.Processes, m.count("select count(distinct worker) from delivery")},
		{"same process", r.Repeated[observe.SameProcess], repeats("d.worker = before.worker")},
		{"second owner", r.Repeated[observe.SecondOwner], second + late},
		{"redelivered", r.Repeated[observe.Redelivered], repeats("d.worker <> before.worker and not (d.thawed or before.thawed)") - late},
		{"written twice", r.Repeated[observe.Producer], twice},
		{"caught by the table", r.Caught, m.count("select (select count(*) from delivery) - count(*) from shipment")},
		{"applied twice", r.AppliedTwice, m.count("select count(*) - count(distinct order_id) from shipment")},
		{"missing", r.Missing, 0},
		{"gaps", r.Gaps, 0},
		{"refused as stale", r.Refused[observe.Stale], stale + lateStale},
		{"refused as applied", r.Refused[observe.Applied], m.count(`select count(distinct d.tx) from delivery d join delivery e using (number, message_offset) where e.id < d.id and not d.thawed and not e.thawed`) - lateStale},
		{"refused as out of order", r.Refused[observe.Order], 0},
		{"reordered", r.Reordered, m.count(`with f as (select number, message_offset, min(id) as id from delivery group by 1, 2),
			h as (select *, max(message_offset) over (partition by number order by id) as high from f) select count(*) from h where message_offset < high`)},
	} {
		if c.got != c.want {
			m.t.Errorf("the report says %s: %d; the truth is %d", c.figure, c.got, c.want)
		}
	}
	if r.Repeated[observe.SecondOwner] == 0 || r.Repeated[observe.Redelivered] < reset || refused == 0 {
		m.t.Errorf("what was to happen has not: %+v, refused %v", r.Repeated, r.Refused)
	}
	found := slices.ContainsFunc(r.Episodes, func(e observe.Episode) bool {
		return e.Kind == observe.Redelivered && e.Partition == fmt.Sprintf("%s/%s/2", m.topic, m.topic) && e.To-e.From+1 <= reset && e.Messages > reset/4
	})
	if !found {
		m.t.Errorf("the reset is not among %+v", r.Episodes)
	}
}

func exitCodeOf(wrong int64) int {
	if wrong > 0 {
		return exitTrouble
	}
	return exitOK
}

// fenced waits until describe shows that a new process has a partition, and an old one another.
func (m *moving) fenced() {
	m.t.Helper()
	m.until("a new process to claim", func() bool {
		ps, err := m.op.Partitions(m.t.Context(), operate.Filter{Group: m.topic})
		must(m.t, err)
		return slices.ContainsFunc(ps, func(p operate.Partition) bool { return p.Epoch > 0 })
	})
	m.until("describe to show what is fenced", func() bool {
		var v struct {
			Partitions []describedView `json:"partitions"`
		}
		m.reads(&v, "describe", "--group", m.topic)
		is := func(fenced bool) bool {
			return slices.ContainsFunc(v.Partitions, func(p describedView) bool { return p.Fenced != nil && *p.Fenced == fenced })
		}
		return is(true) && is(false)
	})
	m.t.Logf("canary:\n%s", m.does(exitOK, "describe", "--group", m.topic).out)
}

// outside returns how many transactions have written to a protected table without a fence.
func (m *moving) outside() (n int64) {
	m.t.Helper()
	var found struct{ Tables []protectedView }
	m.reads(&found, "protect")
	for _, t := range found.Tables {
		for _, o := range t.Outside {
			n += o.Transactions
		}
	}
	return n
}

func (m *moving) wantNobodyOutside() {
	m.t.Helper()
	before := m.outside()
	m.more(300)
	if after := m.outside(); after != before {
		m.t.Errorf("%d transactions were not fenced when only new processes were left", after-before)
	}
	m.t.Logf("enforce: %d transactions were not fenced, and none since", before)
}
