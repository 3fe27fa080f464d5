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

// The rest decides whether a figure is worse than the committed one.
//
// Rounds are noisy, and a burst of other work can slow one variant in half of them. A figure is
// therefore clear only if the median of more rounds would be on the same side of the limit (see
// sure): seven of nine rounds must agree. While a figure is unclear, bench plays more rounds, up to
// a limit; then the median decides. A burst passes, and a fall stays
// (TestTheRuleTellsNoiseFromAFall).

const (
	// fall is how much of a ratio of times may be missing.
	fall = 0.2

	// fallOfWork is the same for a ratio of processor times. It tells of five times the work alone, because
	// such a ratio depends on what the machine's system calls cost and on what runs beside: fenced ÷ plain
	// was 0.87 to 0.35 with the same code, queued ÷ piped 0.43 to 0.14. Less shows in the allocations, and in
	// round trips.
	fallOfWork = 0.8

	// growth is how much the allocations for a message may grow. They are the same on each machine,
	// and therefore show what processor time cannot.
	growth = 0.1

	// mostLots limits the rounds, as a multiple of the requested rounds.
	mostLots = 4
)

func another(played, asked int, unclear func() bool) bool {
	return played < asked || played < mostLots*asked && unclear()
}

type state int

const (
	unclear state = iota
	fine
	fallen
)

// limit returns the ratio that a figure must reach, or may reach if more is worse.
func (m measure) limit(committed float64) float64 {
	switch {
	case m.late():
		return committed / (1 - fall)
	case m == work:
		return committed * (1 - fallOfWork)
	}
	return committed * (1 - fall)
}

func (r result) against(committed result) state {
	limit := r.Of.limit(committed.Ratio)
	switch {
	case r.Of.late() && r.sure[1] <= limit, !r.Of.late() && r.sure[0] >= limit:
		return fine
	case r.Of.late() && r.sure[0] > limit, !r.Of.late() && r.sure[1] < limit:
		return fallen
	default:
		return unclear
	}
}

func (r result) fell(committed result) bool {
	limit := r.Of.limit(committed.Ratio)
	if r.Of.late() {
		return r.Ratio > limit
	}
	return r.Ratio < limit
}

type committed struct {
	file    string
	figures results
}

func readCommitted(file string) (c committed, err error) {
	c.file = file
	if c.figures, err = readResults(file); err != nil {
		return c, fmt.Errorf("bench: the figures to compare with: %s: %w", file, err)
	}
	return c, nil
}

func (c committed) figure(r result) (result, bool) {
	i := slices.IndexFunc(c.figures, func(f result) bool { return f.Row == r.Row && f.Ours == r.Ours && f.Peer == r.Peer && f.Of == r.Of })
	if i < 0 {
		return result{}, false
	}
	return c.figures[i], true
}

func (c committed) unclear(rs results) bool {
	return slices.ContainsFunc(rs, func(r result) bool {
		f, ok := c.figure(r)
		return ok && r.against(f) == unclear
	})
}

func (c committed) compare(rs results) error {
	var errs []error
	for _, r := range rs {
		f, ok := c.figure(r)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("bench: %s: %s ÷ %s: %s has no such figure: run make figures WHAT=ratios and commit it", r.Row, r.Ours, r.Peer, c.file))
		case r.fell(f):
			errs = append(errs, fmt.Errorf("bench: %s: %s ÷ %s is %.3f in the median of %d rounds (quartiles %.3f and %.3f); it was %.3f in %s, which allows %.3f: "+
				"make bench BENCH='-ci -row %s$ -profiles DIR' shows what it is spent on; if the change is worth it, run make figures WHAT=ratios and commit the file",
				r.Row, r.Ours, r.Peer, r.Ratio, r.Rounds, r.Low, r.High, f.Ratio, c.file, r.Of.limit(f.Ratio), r.Row))
		case r.Allocs > f.Allocs*(1+growth):
			errs = append(errs, fmt.Errorf("bench: %s: %s makes %.1f allocations for a message; they were %.1f in %s: "+
				"make bench BENCH='-ci -row %s$ -profiles DIR' shows where; if the change is worth it, run make figures WHAT=ratios and commit the file",
				r.Row, r.Ours, r.Allocs, f.Allocs, c.file, r.Row))
		}
	}
	return errors.Join(errs...)
}
