package show

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/ops/statusz"
)

// Window shows the fenced column in a browser: the status page of its group, from its database, and
// the status pages of its workers. A frozen worker does not answer.
type Window struct {
	crew   *Crew
	page   atomic.Pointer[statusz.Handler] // nil until there is a database
	server *http.Server
	client *http.Client
}

// answerLimit is how long a worker may take to answer. A frozen one takes longer.
const answerLimit = time.Second

// OpenWindow serves the status page of a column at s.HTTP, prints the address, and makes the
// column's workers serve theirs. Without an address it returns nil, which is a valid window that
// shows nothing.
func (s Settings) OpenWindow(b *Board, c *Crew) (*Window, error) {
	if s.HTTP == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", s.HTTP)
	if err != nil {
		return nil, fmt.Errorf("-http: %w", err)
	}
	c.Serving = true
	w := &Window{crew: c, client: &http.Client{Timeout: answerLimit}}
	mux := http.NewServeMux()
	mux.HandleFunc("/", w.group)
	mux.HandleFunc("GET /metrics", w.metrics)
	mux.HandleFunc("/workers/{n}/", w.worker)
	mux.HandleFunc("GET /livez", statusz.Livez)
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = w.server.Serve(listener) }()
	b.Print("Status:  http://" + reachable(listener.Addr()) + "/ and /metrics, of the fenced column")
	b.Print("")
	return w, nil
}

// reachable returns an address that a browser on this machine can open.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// Show makes the page show o, and whether the process of each owner is frozen.
func (w *Window) Show(o statusz.Options) error {
	if w == nil {
		return nil
	}
	o.Owner = w.owner
	page, err := statusz.New(o)
	if err != nil {
		return err
	}
	w.page.Store(page)
	return nil
}

// Close stops serving.
func (w *Window) Close() {
	if w != nil {
		_ = w.server.Close()
	}
}

func (w *Window) group(rw http.ResponseWriter, r *http.Request) {
	page := w.page.Load()
	if page == nil {
		rw.Header().Set("Retry-After", "1")
		http.Error(rw, "the show has not begun yet", http.StatusServiceUnavailable)
		return
	}
	page.ServeHTTP(rw, r)
}

// worded finds the worker's number in the owner of a fence, which contains the worker's name.
var worded = regexp.MustCompile(`worker (\d+)`)

func (w *Window) owner(name string) statusz.Owner {
	found := worded.FindStringSubmatch(name)
	if found == nil {
		return statusz.Owner{}
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		return statusz.Owner{}
	}
	w.crew.mu.Lock()
	defer w.crew.mu.Unlock()
	p := w.crew.workers[n]
	switch {
	case p == nil:
		return statusz.Owner{Name: found[0], Note: "killed"}
	case p.frozen:
		return statusz.Owner{Name: found[0], Note: "frozen"}
	default:
		return statusz.Owner{Name: found[0], URL: "workers/" + found[1] + "/"}
	}
}

func (w *Window) addresses() map[int]string {
	w.crew.mu.Lock()
	defer w.crew.mu.Unlock()
	known := map[int]string{}
	for n, p := range w.crew.workers {
		if p.address != "" {
			known[n] = p.address
		}
	}
	return known
}

func (w *Window) worker(rw http.ResponseWriter, r *http.Request) {
	number := r.PathValue("n")
	n, err := strconv.Atoi(number)
	address := w.addresses()[n]
	if err != nil || address == "" {
		http.Error(rw, "there is no such worker, or not any more", http.StatusNotFound)
		return
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.DisableKeepAlives, transport.ResponseHeaderTimeout = nil, true, answerLimit
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: address})
			p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, "/workers/"+number)
			p.Out.Host = p.In.Host
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(rw, fmt.Sprintf("worker %d does not answer: it is frozen, or was just killed", n), http.StatusGatewayTimeout)
		},
	}
	proxy.ServeHTTP(rw, r)
}

// metrics serves the metrics of all workers that answer, each with its number as a label. In
// production Prometheus would scrape each worker itself, and add an instance label.
func (w *Window) metrics(rw http.ResponseWriter, r *http.Request) {
	addresses := w.addresses()
	var (
		mu    sync.Mutex
		texts = map[int][]byte{}
		all   sync.WaitGroup
	)
	for n, address := range addresses {
		all.Go(func() {
			text, err := w.get(r.Context(), "http://"+address+"/metrics")
			if err != nil {
				return // frozen
			}
			mu.Lock()
			defer mu.Unlock()
			texts[n] = text
		})
	}
	all.Wait()
	rw.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = rw.Write(joined(texts))
}

func (w *Window) get(ctx context.Context, address string) (body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// joined merges the expositions of several workers. All have the same metrics in the same order,
// each with its HELP first.
func joined(texts map[int][]byte) []byte {
	var order []string // of the metrics
	heads, series := map[string]string{}, map[string][]string{}
	for _, n := range slices.Sorted(maps.Keys(texts)) {
		name := ""
		for line := range strings.Lines(string(texts[n])) {
			switch rest, help := strings.CutPrefix(line, "# HELP "); {
			case help:
				name, _, _ = strings.Cut(rest, " ")
				if _, known := heads[name]; !known {
					order = append(order, name)
				}
				heads[name] = line
			case strings.HasPrefix(line, "# TYPE "):
				if !strings.Contains(heads[name], line) {
					heads[name] += line
				}
			default:
				series[name] = append(series[name], labelled(line, n))
			}
		}
	}
	var b bytes.Buffer
	for _, name := range order {
		b.WriteString(heads[name])
		for _, line := range series[name] {
			b.WriteString(line)
		}
	}
	return b.Bytes()
}

func labelled(line string, worker int) string {
	label := fmt.Sprintf(`worker="%d"`, worker)
	at := strings.IndexAny(line, "{ ")
	if line[at] == ' ' {
		return line[:at] + "{" + label + "}" + line[at:]
	}
	return line[:at+1] + label + "," + line[at+1:]
}
