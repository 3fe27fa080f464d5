package statusz

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/ops/stats"
)

// Options say what a page shows. Stats or Operator is required.
type Options struct {
	// Title heads the page; empty means epochfence.
	Title string

	// Stats are those of this process; nil shows nothing of it.
	Stats *stats.Stats

	// Operator and Outbox are those of the sink, for what concerns the whole group; nil
	// shows nothing of it. Filter selects the partitions, decisions, dead letters and
	// entries of the outbox that the overview lists. It is no access control: the pages of
	// partitions, and acts, take any partition of the sink.
	Operator operate.Operator
	Outbox   operate.Outbox
	Filter   operate.Filter

	// Logs returns what the broker knows of the logs of these fences, which a sink does not:
	// the page then says how far behind partitions of other processes are, and a rewind may
	// go to the start or the end. It is called with each reading of the sink, and has the
	// same 5 s for its answer. What it leaves out is not known. It may be nil.
	Logs func(ctx context.Context, fences []epoch.Fence) (map[epoch.Partition]Log, error)

	// Owner returns the name by which operators know an owner, which the fence names as the source
	// does. It may be nil, and must not block.
	Owner func(owner string) Owner

	// MayAct says whether a request comes from somebody who may act, and who that is:
	// the name is what the audit log keeps. The application has authenticated
	// the request, or does it here. Nil: nobody may, and the page is read-only.
	MayAct func(r *http.Request) (by string, ok bool)

	// Logger hears of what could not be read, and of each act. Nil means
	// [slog.Default].
	Logger *slog.Logger
}

// Log is the log of a partition, as its broker has it.
type Log struct {
	Begin, End epoch.Offset // of its first message, and of the next one that is written
	Lag        int64        // messages from the fence's position on
}

// Owner describes an owner. Each field may be empty.
type Owner struct {
	Name string // instead of what the fence has
	URL  string // of its own page
	Note string // a word about its process
}

// Handler serves the page. [New] makes one. It is safe for concurrent use.
type Handler struct {
	Options
	group   *group // nil without an Operator and an Outbox
	streams chan struct{}
	serve   http.Handler
}

//go:embed page
var files embed.FS

var templates = template.Must(template.ParseFS(files, "page/*.html"))

// New returns a handler for the root of a mux, or for a path that ends in a slash behind
// [http.StripPrefix].
func New(o Options) (*Handler, error) {
	switch {
	case o.Stats == nil && o.Operator == nil:
		return nil, errors.New("statusz: neither Stats nor Operator; there is nothing to show")
	case o.MayAct != nil && o.Operator == nil && o.Outbox == nil:
		return nil, errors.New("statusz: MayAct without Operator or Outbox; there is nothing to act on")
	}
	o.Title = visible(cmp.Or(o.Title, "epochfence"))
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Handler{Options: o, streams: make(chan struct{}, maxStreams)}
	if o.Operator != nil || o.Outbox != nil {
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
	// Not no-referrer, which has browsers send a form's origin as null.
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

// owner is the name by which operators know the owner of a fence, or of a decision,.
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

// mayAct is who acts by r, or the empty string.
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
