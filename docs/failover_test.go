package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
)

// TestRealTakeover has measured these, see `make failover`.
func TestThePageOfOperatingHasTheTimesOfTakeovers(t *testing.T) {
	data, err := os.ReadFile("failover.json")
	if err != nil {
		t.Fatal(err)
	}
	var figures []struct {
		Machine, Members, Fault string
		Without                 bool
		Trials                  int
		Median, P95             float64
	}
	if err := json.Unmarshal(data, &figures); err != nil {
		t.Fatal(err)
	}
	var groups []string
	cells, medians, without := map[string]string{}, map[string]float64{}, map[string]float64{}
	for _, machine := range []string{"quiet", "busy"} {
		for _, f := range figures {
			if f.Machine != machine {
				continue
			}
			if !slices.Contains(groups, f.Members) {
				groups = append(groups, f.Members)
			}
			if f.Without {
				without[f.Members] = max(without[f.Members], f.P95)
				continue
			}
			if f.Trials < 10 || f.P95 > 20 {
				t.Errorf("%+v", f)
			}
			if machine == "quiet" {
				medians[f.Members+f.Fault] = f.Median
			}
			cells[f.Members+f.Fault+machine] = fmt.Sprintf("%.1f, %.1f", f.Median, f.P95)
		}
	}
	table := "\n| | killed | busy | frozen | busy | cut off | busy | `Patience` below zero |\n|---|---|---|---|---|---|---|---|\n"
	for _, group := range groups {
		table += "| " + group + " |"
		for _, fault := range []string{"killed", "frozen", "cut off"} {
			for _, machine := range []string{"quiet", "busy"} {
				table += fmt.Sprintf(" %s |", cmp.Or(cells[group+fault+machine], "–"))
			}
		}
		if seconds := without[group]; seconds > 0 {
			table += fmt.Sprintf(" %.0f |\n", seconds)
		} else {
			table += " – |\n"
		}
	}
	isOnPage(t, "operating.md", "failover", table+"\n", "make failover")

	// The README has the medians of the quiet machine, and of the three kinds of groups of Kafka the slowest.
	table = "\n| | killed | frozen | cut off | elsewhere |\n|---|---|---|---|---|\n"
	for _, row := range [][]string{{"Kafka", "Kafka, range", "Kafka, cooperative", "Kafka, KIP-848"}, {"NATS", "NATS, leases there"}, {"jobs", "jobs, leases in PostgreSQL"}} {
		table += "| " + row[0] + " |"
		for _, fault := range []string{"killed", "frozen", "cut off"} {
			slowest := 0.0
			for _, group := range row[1:] {
				slowest = max(slowest, medians[group+fault])
			}
			table += fmt.Sprintf(" %.1f |", slowest)
		}
		table += fmt.Sprintf(" %.0f |\n", without[row[1]])
	}
	isOnPage(t, "../README.md", "failover", table+"\n", "make failover")
}
