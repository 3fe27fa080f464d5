package statusz

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file has the options, the routes, the headers of all answers, and the probes: consumer.Status
// decides whether the process is ready. Each page has a file of its own.

// Options configure a page. Stats or Operator is required.
type Options struct {
	// Title heads the page; empty means epochfence.
	Title string

	// Stats are the statistics of this process. If nil, the page shows nothing of this process.
	Stats *stats.Stats

	// Operator is the sink's, and covers the whole group. If nil, the page shows nothing
	// of the group. Filter selects the partitions, decisions, dead letters and outbox entries that
	// the overview lists; its Paused selects only partitions. Filter is no access control: the pages
	// of partitions, and actions, take any partition of the sink.
	Operator operate.Operator
	Filter   operate.Filter

	// Logs returns the broker's view of the logs of these fences, which a sink does not know: on Kafka
	// kafkasource.Logs does. With Logs, the page shows the lag of partitions of other processes and which ones a
	// member of the group has without a claim, and a rewind may go to the start or the end. The page calls Logs at each read of the sink. The read and Logs together
	// may take 5 s. A log that Logs leaves out is unknown. Logs may be nil.
	Logs func(ctx context.Context, fences []epoch.Fence) (map[epoch.Partition]operate.Extent, error)

	// Owner returns the name by which operators know an owner. Its argument is the owner in the
	// fence, which the source has named. Owner may be nil, and must not block.
	Owner func(owner string) Owner

	// MayAct reports whether a request comes from an operator who may act, and the name for the
	// audit log. The application has authenticated the request, or MayAct does it. If MayAct is
	// nil, the page is read-only.
	MayAct func(r *http.Request) (by string, ok bool)

	// Logger logs failed reads and each action. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Owner describes an owner. Each field may be empty.
type Owner struct {
	Name string // replaces the name in the fence
	URL  string // of the owner's own page
	Note string // a short note about its process
}

// Handler serves the page. [New] makes one. It is safe for concurrent use.
type Handler struct {
	Options
	group   *group // nil without an Operator
	streams chan struct{}
	serve   http.Handler
}

//go:embed page
var files embed.FS

var templates = template.Must(template.ParseFS(files, "page/*.html"))

// New returns a handler to mount at the root of a mux, or at a path that ends in a slash, behind
// [http.StripPrefix].
func New(o Options) (*Handler, error) {
	switch {
	case o.Stats == nil && o.Operator == nil:
		return nil, errors.New("statusz: neither Stats nor Operator; there is nothing to show")
	case o.MayAct != nil && o.Operator == nil:
		return nil, errors.New("statusz: MayAct without Operator; there is nothing to act on")
	}
	o.Title = visible(cmp.Or(o.Title, "epochfence"))
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Handler{Options: o, streams: make(chan struct{}, maxStreams)}
	if o.Operator != nil {
		h.group = newGroup(o)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.overview)
	mux.HandleFunc("GET /events", h.events)
	mux.HandleFunc("GET /style.css", asset("style.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /script.js", asset("script.js", "text/javascript; charset=utf-8"))
	if o.Operator != nil {
		mux.HandleFunc("GET /partition", h.partition)
	}
	if o.MayAct != nil {
		mux.HandleFunc("GET /act", h.preview)
		mux.HandleFunc("POST /act", h.act)
	}
	h.serve = http.NewCrossOriginProtection().Handler(mux)
	return h, nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	head.Set("X-Content-Type-Options", "nosniff")
	// With no-referrer, browsers send a form's Origin as null.
	head.Set("Referrer-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	h.serve.ServeHTTP(w, r)
}

func asset(name, contentType string) http.HandlerFunc {
	content, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(content)
	}
}

func (h *Handler) owner(name string) Owner {
	o := Owner{Name: name}
	if h.Owner != nil {
		known := h.Owner(name)
		known.Name = cmp.Or(known.Name, name)
		o = known
	}
	o.Name, o.Note = show(o.Name), show(o.Note)
	return o
}

func (h *Handler) mayAct(r *http.Request) string {
	if h.MayAct == nil {
		return ""
	}
	by, ok := h.MayAct(r)
	if !ok {
		return ""
	}
	return by
}

// Livez answers 200 while this process serves requests. It checks nothing else; the package's
// documentation says why.
func Livez(w http.ResponseWriter, _ *http.Request) {
	plainText(w)
	fmt.Fprintln(w, "live: this process serves requests; no broker, database or partition was checked")
}

// Readyz answers 200 when this process is a member of its group, has claimed each partition that the
// source granted, none of them has halted, and no call hangs. Partitions that an operator paused do
// not count. Otherwise it answers 503 with a line for each reason. It reports
// [consumer.Status.Ready] of s.
func Readyz(s *stats.Stats) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plainText(w)
		if err := s.Status().Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "not ready:")
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ready: a member of the group, each partition held is claimed; lag was not checked")
	})
}

func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
}
