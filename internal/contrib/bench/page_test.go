package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	pageFile    = "../../../docs/performance.md"
	figuresFile = "../../../docs/performance.json"
)

var update = flag.Bool("update", false, "write the committed figures into docs/performance.md")

// The page is committed with its figures, and a change of its text needs no measurement.
func TestThePageHasTheCommittedFigures(t *testing.T) {
	t.Parallel()
	rs, err := readResults(figuresFile)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	const made = "\nMade on "
	_, machineThen, _ := strings.Cut(string(before), made)
	var b bytes.Buffer
	if err := rs.render(&b, machine{}); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(b.String(), made)
	for _, r := range rs {
		if line := fmt.Sprintf(" | %s ÷ %s | **%.2f** | ", r.Ours, r.Peer, r.Ratio); r.Of != p99 && !strings.Contains(text, line) {
			t.Errorf("no table of the page has %s: %s ÷ %s", r.Row, r.Ours, r.Peer)
		}
	}
	text += made + machineThen
	if text == string(before) {
		return
	}
	if !*update {
		t.Errorf("%s is not what internal/contrib/bench/page.tmpl says with the figures of %s: go test . -update writes it", pageFile, figuresFile)
		return
	}
	if err := os.WriteFile(pageFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTheCommittedFiguresAreThoseOfTheRows(t *testing.T) {
	t.Parallel()
	rs, err := readResults(figuresFile)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, r := range rows() {
		for _, f := range r.figures {
			want = append(want, r.name+": "+r.what+": "+f.ours+" ÷ "+f.peer+" "+string(f.of))
		}
	}
	for _, f := range rs {
		got = append(got, f.Row+": "+f.What+": "+f.Ours+" ÷ "+f.Peer+" "+string(f.Of))
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s has no %s: make bench BENCH='-row … -json docs/performance.json -page docs/performance.md' measures it", figuresFile, w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s has %s, which no row measures", figuresFile, g)
		}
	}
}

func TestThePageSaysWhatEachVariantIs(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(text, "\n## The variants\n")
	var said []string
	for line := range strings.Lines(table) {
		if names, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok {
			said = append(said, strings.Split(names, ", ")...)
		}
	}
	for _, r := range rows() {
		for _, v := range r.variants() {
			if !slices.Contains(said, v) {
				t.Errorf("row %s: internal/contrib/bench/page.tmpl does not say what %q is", r.name, v)
			}
		}
	}
}

func TestEachVariantOfARowExists(t *testing.T) {
	t.Parallel()
	for _, r := range append(rows(), ciRows()...) {
		for _, v := range r.variants() {
			if variants[v] == nil {
				t.Errorf("row %s: there is no variant %q", r.name, v)
			}
		}
	}
}

func TestTheReadmeHasTheCommittedFigures(t *testing.T) {
	t.Parallel()
	rs, err := readResults(figuresFile)
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, costs, _ := strings.Cut(string(readme), "\n## What it costs\n")
	costs, _, _ = strings.Cut(costs, "\n## ")
	for _, f := range []struct {
		row, ours, peer string
		text            string // what the README says, with the figure in place of #
	}{
		{"kafka/network", "kafka/run-sets", "kafka/set", "**#** times; "},
	} {
		want := strings.ReplaceAll(f.text, "#", rs.Median(f.row, f.ours, f.peer, throughput))
		if !strings.Contains(costs, want) {
			t.Errorf("README.md does not say %q, which is %s: %s ÷ %s in %s", want, f.row, f.ours, f.peer, figuresFile)
		}
	}
}
