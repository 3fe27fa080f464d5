package fenceprom_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/fenceprom"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// drill is two processes of one group, both of which a real Prometheus scrapes.
type drill struct {
	*testing.T
	log   *memsource.Log
	group *memsource.Group
	sink  *memsink.Sink
	prom  *prometheusServer
}

// worker is one of the processes.
type worker struct {
	member  *memsource.Member
	sink    *memsink.Sink
	stats   *stats.Stats
	address string // of its /metrics
}

func (d *drill) start(name string, handle consumer.Handler[*memsink.Tx]) *worker {
	return d.startAs(d.group.Member(name), consumer.Each(handle), consumer.Options{})
}

func (d *drill) startAs(m *memsource.Member, h consumer.Handlers[*memsink.Tx], o consumer.Options) *worker {
	w := &worker{member: m, sink: d.sink.Open(), stats: stats.New()}
	registry := prometheus.NewRegistry()
	registry.MustRegister(fenceprom.New(w.stats))
	page := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	w.address = strings.TrimPrefix(page.URL, "http://")
	o.Observe, o.Logger = w.stats.Observe, slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- consumer.Run(ctx, w.member, w.sink, h, o)
	}()
	d.Cleanup(func() {
		stop()
		// Of a handler that hangs until now, Run may find out before it has returned.
		if err := <-done; err != nil && !errors.As(err, new(*consumer.HungError)) {
			d.Errorf("worker %s: %v", m.Name(), err)
		}
		page.Close()
	})
	return w
}

func (d *drill) append(partition int32, value string) {
	d.log.AppendMessages(partition, consumer.Message{Value: []byte(value), Time: time.Now()})
}

// await waits until the expression has a sample that is not zero.
func (d *drill) await(expression string) {
	d.Helper()
	d.prom.await(d, expression, func() bool {
		all, err := d.prom.query("(" + expression + ") != 0")
		if err != nil {
			d.Fatal(err)
		}
		return len(all) > 0
	})
}

func TestTheAlertsFireInADrillAndAreSilentOtherwise(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a server")
	}
	findPrometheus(t)
	log := memsource.New("orders", 2)
	d := &drill{T: t, log: log, group: log.Group(memsource.DefaultGroup), sink: memsink.New()}
	d.group.Script()
	hangs := make(chan struct{})
	a := d.start("a", func(ctx context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if string(m.Value) == "slow" {
			close(hangs)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	b := d.start("b", func(_ context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if string(m.Value) == "poison" {
			return consumer.Permanent(os.ErrInvalid)
		}
		return nil
	})
	rules := absolute(t, "../alerts/epochfence.rules.yaml")
	d.prom = startPrometheus(t, []string{a.address, b.address}, []string{rules})

	// All is well.
	d.prom.await(t, "both are members", func() bool { return joined(a) && joined(b) })
	d.group.Grant(a.member, log.Name(), 0)
	d.append(0, "a chair")
	d.locks(a, b)
	d.await(`sum(epochfence_messages_total) == 1 and sum(epochfence_partition_next_offset) == 1 and sum(lock_acquire_success_total{resource=""}) == 1 and sum(lock_acquire_success_total{resource="nightly/0"}) == 1`)
	if firing := d.prom.alerts(t); firing != "" {
		t.Fatalf("while all is well, these alerts fire: %s", firing)
	}

	// A takeover: worker a stands between its handler and the fence, and is deaf, while b
	// gets its partition.
	frozen, thaw := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	a.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		if !once.Swap(true) {
			close(frozen)
			<-thaw
		}
		return do()
	}})
	d.append(0, "a table")
	<-frozen
	a.member.Freeze()
	d.group.Expire(a.member)
	d.group.Grant(b.member, log.Name(), 0)
	d.await(`epochfence_messages_total{instance="` + b.address + `"}`)
	close(thaw)
	d.await(`fencing_reject_total{reason="stale",stage="commit",instance="` + a.address + `"}`)
	a.member.Thaw()
	d.await(`ALERTS{alertname="EpochfenceZombieRefused",alertstate="firing",instance="` + a.address + `"}`)

	// A partition is lost in the middle of a transaction.
	d.prom.await(t, "worker a has joined again, and holds nothing", func() bool { return joined(a) && len(a.stats.Partitions()) == 0 })
	d.group.Grant(a.member, log.Name(), 1)
	d.append(1, "slow")
	<-hangs
	d.group.Expire(a.member)
	d.await(`ALERTS{alertname="EpochfenceLostInFlight",alertstate="firing",instance="` + a.address + `"}`)

	// A halt.
	d.append(0, "poison")
	d.await(`ALERTS{alertname="EpochfencePartitionHalted",alertstate="firing",partition="0",reason="message_failed"}`)

	want := map[string]bool{"EpochfenceZombieRefused": true, "EpochfenceLostInFlight": true, "EpochfencePartitionHalted": true}
	for name := range strings.FieldsSeq(d.prom.alerts(t)) {
		if !want[name] {
			t.Errorf("%s fires, for which there is no reason", name)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s does not fire", name)
	}
	b.misses(2, time.Second)
	d.await(`count_over_time(epochfence_job_late_seconds[1m]) >= 2`)
	d.everyPanelShowsSomething()
	for _, m := range stats.Metrics() { // and so does each name of the field
		if m.KnownAs != "" {
			d.await("count(" + strings.Fields(m.KnownAs)[0] + ")")
		}
	}
}

// locks has one process take a lock, and the other one wait for it until the test ends.
func (d *drill) locks(holds, waits *worker) {
	store := memstore.New()
	open := func(w *worker) *lease.Member {
		m, err := lease.Open(d.Context(), store, lease.Options{Group: "billing", MaxStall: -1, Observe: w.stats.ObserveLease, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			d.Fatal(err)
		}
		d.Cleanup(m.Close)
		return m
	}
	if _, err := open(holds).Acquire(d.Context(), "nightly"); err != nil {
		d.Fatal(err)
	}
	m, done := open(waits), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = m.Acquire(context.WithoutCancel(d.Context()), "nightly")
	}()
	d.Cleanup(func() {
		m.Close()
		<-done
	})
}

// misses has the process run a job after ticks that nobody ran.
func (w *worker) misses(ticks int, late time.Duration) {
	job := epoch.Partition{Group: "billing", Topic: "invoices"}
	w.stats.Observe(consumer.Granted{Partition: job})
	w.stats.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: job, Log: operate.JobLog}, Epoch: 1}})
	w.stats.Observe(consumer.Advanced{Partition: job, Epoch: 1, Messages: 1, Missed: ticks, Late: late})
}

func joined(w *worker) bool {
	yes, _ := w.stats.Status().Joined()
	return yes
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir + "/" + path
}

// everyPanelShowsSomething runs each expression of the dashboard.
func (d *drill) everyPanelShowsSomething() {
	text, err := os.ReadFile("../dashboard/epochfence.json")
	if err != nil {
		d.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		d.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$job", "epochfence", "$instance", ".*")
	expressions := 0
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			expressions++
			all, err := d.prom.query(variables.Replace(q.Expr))
			if err != nil || len(all) == 0 {
				d.Errorf("panel %q: %s: %d samples, %v", p.Title, q.Expr, len(all), err)
			}
		}
	}
	if expressions < len(stats.Metrics()) {
		d.Errorf("%d expressions for %d metrics", expressions, len(stats.Metrics()))
	}
}
