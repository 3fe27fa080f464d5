package main

import (
	"errors"
	"fmt"
	"slices"
)

// This file decides whether a figure is worse than the committed one.
//
// Rounds are noisy, and a burst of other work can slow one variant in half of them. A figure is
// therefore clear only if the median of more rounds would be on the same side of the limit (see
// sure): seven of nine rounds must agree. While a figure is unclear, bench plays more rounds, up to
// a limit; then the median decides. A burst passes, and a fall stays
// (TestTheRuleTellsNoiseFromAFall).

const (
	// fall is how much of a ratio of times may be missing.
	fall = 0.2

	// fallOfWork is the same for a ratio of processor times. Such a ratio depends on the machine:
	// fenced ÷ plain was 0.82 on a quiet machine, and 0.62 with the same code on one three times as
	// slow.
	fallOfWork = 0.35

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
