package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// result is a figure, over all rounds.
type result struct {
	Row, What  string
	Ours, Peer string
	Of         measure `json:",omitempty"`
	Reach      float64 `json:",omitempty"`

	Ratio     float64 // the median of the rounds: over one, ours is the faster, or the later
	Low, High float64 // the quartiles
	Rounds    int

	Value, PeerValue   float64 // medians, in messages a second or nanoseconds: they are about the machine, too
	Allocs, PeerAllocs float64 // for each message
	Bytes, PeerBytes   float64
}

type results []result

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
			Ratio: quantile(ratios, 0.5), Low: quantile(ratios, 0.25), High: quantile(ratios, 0.75), Rounds: len(ratios),
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

// quantile of what is sorted: the nearest one.
func quantile[T any](sorted []T, q float64) T {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// table writes the figures for people.
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

// Text is a value for people.
func (m measure) Text(value float64) string {
	switch m {
	case p50, p99:
		return fmt.Sprintf("%s %.1f ms", m, value/1e6)
	case traffic, goroutines, memory:
		return fmt.Sprintf("%.1f %s", value, m)
	}
	digits := fmt.Sprintf("%.0f", value)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits + "/s"
}

// worse says whether a figure has lost a fifth.
func (r result) worse(before result) bool {
	if r.Of.late() {
		return r.Ratio*0.8 > before.Ratio
	}
	return r.Ratio < before.Ratio*0.8
}

// compare looks for figures that have lost a fifth.
func (rs results) compare(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var before results
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("bench: %s: %w", file, err)
	}
	var errs []error
	for _, r := range rs {
		i := slices.IndexFunc(before, func(b result) bool { return b.Row == r.Row && b.Ours == r.Ours && b.Peer == r.Peer && b.Of == r.Of })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("bench: %s, %s ÷ %s: there is no figure in %s to compare it with", r.Row, r.Ours, r.Peer, file))
		case r.worse(before[i]):
			errs = append(errs, fmt.Errorf("bench: %s, %s ÷ %s: %.2f, and it was %.2f", r.Row, r.Ours, r.Peer, r.Ratio, before[i].Ratio))
		}
	}
	return errors.Join(errs...)
}
