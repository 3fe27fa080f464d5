package statusz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file serves the overview, once or as server-sent events, and decides from signs of life which
// owners are dead and which groups have no process. It reads the group's state from the sink, at most once a
// second for all viewers, and measures rates between readings. view.go decides what is shown.

const (
	// streamEvery is the time between two updates of a live page, and streamPace limits its bytes
	// per second: a page of many partitions is sent less often.
	streamEvery = time.Second
	streamPace  = 128 << 10

	// streamFor limits the duration of a stream, so that a graceful shutdown of the server does not
	// wait long. The browser then opens another stream.
	streamFor = 10 * time.Second

	maxStreams   = 64
	writeTimeout = 10 * time.Second
)

func (h *Handler) overview(w http.ResponseWriter, r *http.Request) {
	h.write(w, http.StatusOK, "overview.html", h.read(r.Context(), h.mayAct(r) != ""))
}

func (h *Handler) read(ctx context.Context, mayAct bool) *view {
	if h.group == nil {
		return h.look(nil, nil, mayAct)
	}
	group, err := h.group.read(ctx)
	return h.look(group, err, mayAct)
}

// write writes the whole page or nothing.
func (h *Handler) write(w http.ResponseWriter, status int, name string, page any) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, page); err != nil {
		h.Logger.Error("statusz: a page could not be made", "page", name, "err", err)
		http.Error(w, "the page could not be made; the log has the reason", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		http.Error(w, "too many streams are open; the page works without", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx must not buffer the stream
	mayAct := h.mayAct(r) != ""
	control := http.NewResponseController(w)
	over := time.NewTimer(streamFor)
	defer over.Stop()
	for {
		sent, err := h.send(w, control, h.read(r.Context(), mayAct))
		if err != nil {
			return
		}
		wait := time.NewTimer(max(streamEvery, time.Duration(sent)*time.Second/streamPace))
		select {
		case <-r.Context().Done():
		case <-over.C:
		case <-wait.C:
			continue
		}
		wait.Stop()
		return
	}
}

func (h *Handler) send(w http.ResponseWriter, control *http.ResponseController, v *view) (sent int, err error) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "live", v); err != nil {
		h.Logger.Error("statusz: the page could not be made", "err", err)
		return 0, err
	}
	e := bytes.NewBufferString("retry: 1000\nevent: page\n")
	for line := range bytes.Lines(b.Bytes()) {
		e.WriteString("data: ")
		e.Write(bytes.TrimRight(line, "\r\n"))
		e.WriteByte('\n')
	}
	e.WriteByte('\n')
	// A stream outlasts the server's WriteTimeout. A writer without deadlines returns an error,
	// which does not matter.
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := w.Write(e.Bytes()); err != nil {
		return 0, err
	}
	return e.Len(), control.Flush()
}

// orphaned reports whether the process that has claimed a partition is dead, and describes that
// process.
func (g *groupReading) orphaned(p operate.Partition) (yes bool, sign string) {
	owner, known := g.lives.Owner(p.Fence)
	switch {
	case known && owner.Alive():
		return false, ""
	case known:
		return true, "not seen for " + age(owner.Now.Sub(owner.Seen)) + ", and no process has claimed the partition since"
	default:
		return true, "it gives no sign of life, and no process has claimed the partition since"
	}
}

// deserted describes the groups without a live process. A group of which this process holds a
// partition has one.
func (g *groupReading) deserted(held []stats.Partition) (said []string) {
	seen := map[string]bool{}
	for _, p := range held {
		seen[p.Partition.Group] = true
	}
	for _, p := range g.partitions {
		group := p.Fence.Partition.Group
		if seen[group] || p.Log == lease.FenceLog { // in another database, too
			continue
		}
		seen[group] = true
		if g.lives.Alive(group) > 0 {
			continue
		}
		text := fmt.Sprintf("No process of group %s is alive", show(group))
		if last, known := g.lives.Last(group); known {
			text += fmt.Sprintf("; %s on %s was seen last, %s ago", show(last.Name), show(last.Host), age(last.Now.Sub(last.Seen)))
		}
		said = append(said, text+".")
	}
	return said
}

// processes returns the number of live processes, and of dead ones that did not end in good order.
func (g *groupReading) processes() figure {
	alive := 0
	for _, p := range g.lives {
		if p.Alive() {
			alive++
		}
	}
	f := figure{Name: "Processes alive", Value: thousands(int64(alive))}
	if gone := len(g.lives) - alive; gone > 0 {
		f.Note = plural(gone, "gives no signs of life any more", "give no signs of life any more")
	}
	return f
}

func nobody(deserted []string) verdict {
	return verdict{"halted", "No live process", strings.Join(deserted[:min(len(deserted), 3)], " ") + " Start one."}
}

const (
	// readEvery is the minimum time between two reads of the sink, and readTimeout the maximum
	// duration of a read.
	readEvery   = time.Second
	readTimeout = 5 * time.Second

	// rateOver is the period over which a partition's rate is measured.
	rateOver = 10 * time.Second

	listed = 50
)

// group reads the sink for all requests.
type group struct {
	Options
	sem  chan struct{} // holds a value while no read is running
	last *groupReading // nil before the first; guarded by sem
	past []sample      // of the last rateOver, oldest first; guarded by sem
}

// groupReading is the result of a read. It is immutable.
type groupReading struct {
	tried, at  time.Time // by this process's clock; at is zero if no read has succeeded
	err        error     // of the last attempt; the rest is then from the read before it
	partitions []operate.Partition
	lives      operate.Lives
	rates      map[epoch.Partition]float64        // messages a second; nil before there are two readings
	logs       map[epoch.Partition]operate.Extent // nil where they are not known
	logsErr    error
	halts      map[epoch.Partition]*operate.Decision
	decisions  []operate.Decision // newest first
	dead       []operate.DeadLetter
	deferred   []operate.DeadLetter
	entries    []operate.OutboxEntry
}

type sample struct {
	at   time.Time
	next map[epoch.Partition]epoch.Offset
}

func newGroup(o Options) *group {
	g := &group{Options: o, sem: make(chan struct{}, 1)}
	g.sem <- struct{}{}
	return g
}

// read returns a reading that is not older than readEvery. Concurrent callers wait for a running
// read.
func (g *group) read(ctx context.Context) (*groupReading, error) {
	select {
	case <-g.sem:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { g.sem <- struct{}{} }()
	if g.last != nil && time.Since(g.last.tried) < readEvery {
		return g.last, nil
	}
	// The read is not tied to this request: a client that leaves does not abort it for the others.
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	now := &groupReading{tried: time.Now()}
	if err := g.fetch(reading, now); err != nil {
		failed := groupReading{}
		if g.last != nil {
			failed = *g.last
		}
		if g.last == nil || g.last.err == nil {
			g.Logger.Warn("statusz: the sink could not be read", "err", err)
		}
		failed.tried, failed.err = time.Now(), err
		g.last = &failed
		return g.last, nil
	}
	now.at = time.Now()
	g.measure(now)
	g.last = now
	return now, nil
}

func (g *group) fetch(ctx context.Context, r *groupReading) (err error) {
	if g.Operator != nil {
		if r.partitions, err = g.Operator.Partitions(ctx, g.Filter); err != nil {
			return err
		}
		if r.lives, err = g.Operator.Processes(ctx, g.Filter.Group); err != nil {
			return err
		}
		if r.halts, err = operate.Halts(ctx, g.Operator, r.partitions); err != nil {
			return err
		}
		if r.decisions, err = g.Operator.History(ctx, operate.HistoryQuery{Limit: 4 * listed}); err != nil {
			return err
		}
		if r.dead, err = g.Operator.DeadLetters(ctx, operate.DeadLetterQuery{Filter: g.Filter, Limit: listed}); err != nil {
			return err
		}
		if r.deferred, err = g.Operator.DeadLetters(ctx, operate.DeadLetterQuery{Filter: g.Filter, Deferred: true, Limit: listed}); err != nil {
			return err
		}
		if r.entries, err = g.Operator.OutboxEntries(ctx, operate.OutboxQuery{Filter: g.Filter, Limit: listed}); err != nil {
			return err
		}
	}
	if g.Logs != nil && g.Operator != nil {
		if r.logs, r.logsErr = g.Logs(ctx, operate.Fences(r.partitions)); r.logsErr != nil {
			g.Logger.Debug("statusz: the broker could not be asked about the logs", "err", r.logsErr)
		}
	}
	return nil
}

func (g *group) measure(r *groupReading) {
	now := sample{at: r.at, next: make(map[epoch.Partition]epoch.Offset, len(r.partitions))}
	for _, p := range r.partitions {
		if isJob(p.Fence) { // its position moves with the clock
			continue
		}
		now.next[p.Fence.Partition] = p.Next
	}
	for len(g.past) > 0 && now.at.Sub(g.past[0].at) > rateOver+readTimeout {
		g.past = g.past[1:]
	}
	if len(g.past) > 0 {
		before := g.past[0]
		r.rates = map[epoch.Partition]float64{}
		for p, next := range now.next {
			if was, known := before.next[p]; known {
				r.rates[p] = max(float64(next-was)/now.at.Sub(before.at).Seconds(), 0)
			}
		}
	}
	g.past = append(g.past, now)
	for len(g.past) > 1 && now.at.Sub(g.past[1].at) >= rateOver {
		g.past = g.past[1:]
	}
}

func gone(err error) bool {
	return errors.Is(err, epoch.ErrMissing) || errors.Is(err, operate.ErrNoDeadLetter) || errors.Is(err, operate.ErrNoOutboxEntry)
}
