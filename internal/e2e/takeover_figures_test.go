package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// takeoverFigure is what TestRealTakeover measures of one fault, in seconds.
type takeoverFigure struct {
	Machine string
	Members string // who decides which process has which partition
	Fault   string
	Without bool `json:",omitempty"` // patience
	Trials  int
	Median  float64
	P95     float64

	took []time.Duration
}

type takeoverFigures []takeoverFigure

// table returns the figures in Markdown, a line for each group and a column for each fault.
func (all takeoverFigures) table() string {
	var faults []string
	rows, order := map[string]string{}, []string{}
	for _, f := range all {
		name := f.Members
		if f.Without {
			name += ", without patience"
		}
		if rows[name] == "" {
			rows[name], order = "| "+name+" |", append(order, name)
		}
		if !slices.Contains(faults, f.Fault) {
			faults = append(faults, f.Fault)
		}
		rows[name] += fmt.Sprintf(" %.2f, %.2f |", f.Median, f.P95)
	}
	text := "| | " + strings.Join(faults, " | ") + " |\n|" + strings.Repeat("---|", len(faults)+1) + "\n"
	for _, name := range order {
		text += rows[name] + "\n"
	}
	return text
}

// write replaces what a file has of the same trials on such a machine.
func (all takeoverFigures) write(t *testing.T, file, machine string) {
	t.Helper()
	var had takeoverFigures
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &had)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range all {
		f.Machine, f.Median, f.P95 = machine, math.Round(f.Median*1000)/1000, math.Round(f.P95*1000)/1000
		had = slices.DeleteFunc(had, func(old takeoverFigure) bool {
			return old.Machine == machine && old.Members == f.Members && old.Fault == f.Fault && old.Without == f.Without
		})
		had = append(had, f)
	}
	lines := make([]string, len(had))
	for i, f := range had {
		line, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = string(line)
	}
	if err := os.WriteFile(file, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}
