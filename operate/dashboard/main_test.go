package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/epochfence/epochfence/operate/stats"
)

func TestTheFileIsWhatTheCommandWrites(t *testing.T) {
	var now bytes.Buffer
	if err := write(&now); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("epochfence.json")
	if err != nil || !bytes.Equal(have, now.Bytes()) {
		t.Errorf("write it again: go run ./operate/dashboard >operate/dashboard/epochfence.json (%v)", err)
	}
}

func TestEachMetricHasOnePanel(t *testing.T) {
	panels := map[string]int{}
	for _, s := range sections {
		for _, name := range s.metrics {
			panels["epochfence_"+name]++
		}
	}
	for _, m := range stats.Metrics() {
		if panels[m.Name] != 1 {
			t.Errorf("%s has %d panels", m.Name, panels[m.Name])
		}
		delete(panels, m.Name)
	}
	for name := range panels {
		t.Errorf("there is no %s", name)
	}
}
