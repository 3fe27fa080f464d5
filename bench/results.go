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
	Reach      float64 `json:",omitempty"`

	Ratio     float64 // the median of the rounds: over one, ours is the faster
	Low, High float64 // the quartiles
	Rounds    int

	PerSecond, PeerPerSecond float64 // medians: they are about the machine, too
	Allocs, PeerAllocs       float64 // for each message
	Bytes, PeerBytes         float64
}

type results []result

func (p played) results() (rs results) {
	for _, f := range p.row.figures {
		ours, peer := p.outcomes[f.ours], p.outcomes[f.peer]
		ratios := make([]float64, len(ours))
		for i := range ratios {
			ratios[i] = ours[i].perSecond() / peer[i].perSecond()
		}
		slices.Sort(ratios)
		rs = append(rs, result{
			Row: p.row.name, What: p.row.what, Ours: f.ours, Peer: f.peer, Reach: f.reach,
			Ratio: quantile(ratios, 0.5), Low: quantile(ratios, 0.25), High: quantile(ratios, 0.75), Rounds: len(ratios),
			PerSecond: median(ours, outcome.perSecond), PeerPerSecond: median(peer, outcome.perSecond),
			Allocs: median(ours, outcome.allocs), PeerAllocs: median(peer, outcome.allocs),
			Bytes: median(ours, outcome.bytes), PeerBytes: median(peer, outcome.bytes),
		})
	}
	return rs
}

func (o outcome) perSecond() float64 { return float64(o.Timed) / o.Took.Seconds() }
func (o outcome) allocs() float64    { return o.Allocs }
func (o outcome) bytes() float64     { return o.Bytes }

func median(os []outcome, of func(outcome) float64) float64 {
	var all []float64
	for _, o := range os {
		all = append(all, of(o))
	}
	slices.Sort(all)
	return quantile(all, 0.5)
}

// quantile of what is sorted: the nearest one.
func quantile(sorted []float64, q float64) float64 {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// table writes the figures for people.
func (rs results) table(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "row\tfigure\tmedian\tquartiles\treach\tmessages/s\tpeer's\tallocs\tpeer's\tbytes\tpeer's")
	for _, r := range rs {
		reach := "–"
		if r.Reach > 0 {
			reach = fmt.Sprintf("%.2f", r.Reach)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s ÷ %s\t%.2f\t%.2f to %.2f\t%s\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\n", r.Row, r.Ours, r.Peer,
			r.Ratio, r.Low, r.High, reach, r.PerSecond, r.PeerPerSecond, r.Allocs, r.PeerAllocs, r.Bytes, r.PeerBytes)
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

// compare looks for figures that have fallen by a fifth.
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
		i := slices.IndexFunc(before, func(b result) bool { return b.Row == r.Row && b.Ours == r.Ours && b.Peer == r.Peer })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("bench: %s, %s ÷ %s: there is no figure in %s to compare it with", r.Row, r.Ours, r.Peer, file))
		case r.Ratio < before[i].Ratio*0.8:
			errs = append(errs, fmt.Errorf("bench: %s, %s ÷ %s: %.2f, and it was %.2f", r.Row, r.Ours, r.Peer, r.Ratio, before[i].Ratio))
		}
	}
	return errors.Join(errs...)
}
