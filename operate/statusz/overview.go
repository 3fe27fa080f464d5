package statusz

import (
	"bytes"
	"context"
	"net/http"
	"time"
)

// This file serves the overview, once or as server-sent events. view.go decides what is on it.

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
