package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
)

// result is a figure over all rounds.
type result struct {
	Row, What  string
	Ours, Peer string
	Of         measure `json:",omitempty"`
	Reach      float64 `json:",omitempty"`

	Ratio     float64 // the median of the rounds: above one, ours is faster, or later
	Low, High float64 // the quartiles
	Rounds    int
	sure      [2]float64 // the bounds of the median of more rounds

	Value, PeerValue   float64 // medians, in messages per second or nanoseconds; they depend on the machine
	Allocs, PeerAllocs float64 // per message
	Bytes, PeerBytes   float64
}

type results []result

// with returns rs and, for other rows, the figures of before, in the order of all.
func (rs results) with(before results, all []row) (merged results) {
	for _, r := range all {
		of := func(f result) bool { return f.Row == r.name }
		from := before
		if slices.ContainsFunc(rs, of) {
			from = rs
		}
		for _, f := range from {
			if of(f) {
				merged = append(merged, f)
			}
		}
	}
	return merged
}

func readResults(file string) (rs results, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &rs)
	}
	return rs, err
}

func (p played) results() (rs results) {
	for _, f := range p.row.figures {
		ours, peer := p.outcomes[f.ours], p.outcomes[f.peer]
		ratios := make([]float64, len(ours))
		for i := range ratios {
			ratios[i] = f.of.of(ours[i]) / f.of.of(peer[i])
		}
		slices.Sort(ratios)
		rs = append(rs, result{
			Row: p.row.name, What: p.row.what, Ours: f.ours, Peer: f.peer, Of: f.of, Reach: f.reach,
			Ratio: quantile(ratios, 0.5), Low: ratios[(len(ratios)-1)/4], High: ratios[len(ratios)-1-(len(ratios)-1)/4], Rounds: len(ratios), sure: sure(ratios),
			Value: median(ours, f.of.of), PeerValue: median(peer, f.of.of),
			Allocs: median(ours, outcome.allocs), PeerAllocs: median(peer, outcome.allocs),
			Bytes: median(ours, outcome.bytes), PeerBytes: median(peer, outcome.bytes),
		})
	}
	return rs
}

func (o outcome) allocs() float64 { return o.Allocs }
func (o outcome) bytes() float64  { return o.Bytes }

func median(os []outcome, of func(outcome) float64) float64 {
	var all []float64
	for _, o := range os {
		all = append(all, of(o))
	}
	slices.Sort(all)
	return quantile(all, 0.5)
}

// sure returns the bounds of the median of any number of rounds, from sorted ratios. The median is
// below them in one of ten cases and above them in one of ten, because half of all rounds are below
// their median (the sign test).
func sure(ratios []float64) [2]float64 {
	n := len(ratios)
	out := max(int(float64(n)/2-1.28*math.Sqrt(float64(n))/2), 0)
	return [2]float64{ratios[out], ratios[n-1-out]}
}

func quantile[T any](sorted []T, q float64) T {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func (rs results) table(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "row\tfigure\tmedian\tquartiles\treach\tit has\tpeer's\tallocs\tpeer's\tbytes\tpeer's")
	for _, r := range rs {
		reach := "–"
		if r.Reach > 0 {
			reach = fmt.Sprintf("%.2f", r.Reach)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s ÷ %s\t%.2f\t%.2f to %.2f\t%s\t%s\t%s\t%.1f\t%.1f\t%.0f\t%.0f\n", r.Row, r.Ours, r.Peer,
			r.Ratio, r.Low, r.High, reach, r.Of.Text(r.Value), r.Of.Text(r.PeerValue), r.Allocs, r.PeerAllocs, r.Bytes, r.PeerBytes)
	}
	_ = w.Flush()
}

func (rs results) write(file string) error {
	text, err := json.MarshalIndent(rs, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Text formats a value for readers of the page.
func (m measure) Text(value float64) string {
	switch m {
	case p50, p99:
		return fmt.Sprintf("%s %.1f ms", m, value/1e6)
	}
	digits := fmt.Sprintf("%.0f", value)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if m == work {
		return digits + "/s of CPU"
	}
	return digits + "/s"
}

type machine struct {
	CPU      string
	Cores    int
	Go       string
	Postgres string
	Modules  []string // of the compared libraries, with versions
}

func (s *services) machine(ctx context.Context) (m machine, err error) {
	m = machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil { // on Linux
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/jackc/pgx/v5", "github.com/twmb/franz-go", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2":
				m.Modules = append(m.Modules, strings.TrimPrefix(d.Path, "github.com/")+" "+d.Version)
			}
		}
	}
	return m, s.pool.QueryRow(ctx, "select split_part(version(), ' on ', 1)").Scan(&m.Postgres)
}

//go:embed page.tmpl
var text string

var page = template.Must(template.New("page").Parse(text))

func (s *services) writePage(ctx context.Context, rs results, file string) error {
	m, err := s.machine(ctx)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(rs.render(f, m), f.Close())
}

func (rs results) render(to io.Writer, m machine) error {
	return page.Execute(to, map[string]any{"Results": rs, "Machine": m})
}

// Rows returns the figures of the rows whose names begin with one of these, without those that begin
// with one that has a minus sign in front. The few rounds of a page do not determine a p99, so it is
// left out.
func (rs results) Rows(names ...string) (some results) {
	for _, r := range rs {
		is := false
		for _, name := range names {
			without, not := strings.CutPrefix(name, "-")
			if strings.HasPrefix(r.Row, without) {
				is = !not
			}
		}
		if is && r.Of != p99 {
			some = append(some, r)
		}
	}
	return some
}

// Median returns a figure for the page's text, or a dash if it was not measured.
func (rs results) Median(row, ours, peer string, of measure) string {
	for _, r := range rs {
		if r.Row == row && r.Ours == ours && r.Peer == peer && r.Of == of {
			return fmt.Sprintf("%.2f", r.Ratio)
		}
	}
	return "–"
}

// MedianOf is Median for what a variant has by itself. The page's text names the measure.
func (rs results) MedianOf(row, variant string, of measure) string {
	for _, r := range rs {
		switch {
		case r.Row != row || r.Of != of:
		case r.Ours == variant:
			return strings.TrimPrefix(of.Text(r.Value), string(of)+" ")
		case r.Peer == variant:
			return strings.TrimPrefix(of.Text(r.PeerValue), string(of)+" ")
		}
	}
	return "–"
}
