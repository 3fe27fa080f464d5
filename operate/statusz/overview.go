package statusz

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file serves the overview, once or as server-sent events, and decides from signs of life which
// owners are dead and which groups have no process. view.go decides what is on it.

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
