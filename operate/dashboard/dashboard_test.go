// Package dashboard keeps a Grafana dashboard, epochfence.json, that shows the table of metrics in
// package operate/stats.
package dashboard

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/operate/stats"
)

var update = flag.Bool("update", false, "write the dashboard")

func TestTheDashboardShowsTheTableOfMetrics(t *testing.T) {
	const file = "epochfence.json"
	var now bytes.Buffer
	out := json.NewEncoder(&now)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	if err := out.Encode(dashboard()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, now.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, now.Bytes()) {
		t.Errorf("%s is out of date: go test ./operate/dashboard -update (%v)", file, err)
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

type section struct {
	title   string
	metrics []string
}

var sections = []section{
	{"Is it well?", []string{
		"partition_halted", "partitions", "member", "lag_messages", "messages_total", "apply_delay_seconds", "unfenced_writes_total", "sink_went_back_total",
	}},
	{"Claims and fences", []string{
		"claims_total", "claim_duration_seconds", "fence_rejects_total", "token_gap", "tenures_lost_in_flight_total", "halts_total",
		"suspicions_total", "wrong_suspicions_total",
	}},
	{"Transactions and handlers", []string{
		"transactions_total", "transaction_duration_seconds", "handler_duration_seconds", "handler_failures_total",
		"dead_letters_total", "deferred_messages_total", "messages_deferred", "hung_calls", "overdue_transactions_total", "message_bytes_total", "snapshot_age_transactions",
	}},
	{"Partitions", []string{
		"partition_lag_messages", "partition_next_offset", "partition_epoch", "partition_newest_message_timestamp_seconds", "partitions_unlisted", "partitions_lag_unknown",
		"job_ticks_missed_total", "job_late_seconds",
	}},
	{"Locks", []string{
		"lease_wait_seconds_total", "lease_waiting", "leases_held", "lease_acquisitions_total", "lease_acquire_duration_seconds", "lease_held_duration_seconds",
		"lease_work_total", "lease_work_ttl_ratio", "leases_lost_working_total", "lease_rejects_total", "lease_token_gap", "lease_renewals_total",
	}},
	{"Outbox, receiver and items", []string{
		"outbox_deliveries_total", "outbox_entries", "outbox_oldest_entry_age_seconds", "receiver_requests_total", "receiver_duration_seconds",
		"item_decisions_total",
	}},
}

const filter = `job=~"$job", instance=~"$instance"`

type query struct{ expression, legend string }

func queries(m *stats.Metric) []query {
	chosen := m.Name + "{" + filter + "}"
	by := strings.Join(m.Labels, ", ")
	legend := ""
	for _, l := range m.Labels {
		legend += "{{" + l + "}} "
	}
	if legend = strings.TrimSpace(legend); legend == "" {
		legend = "{{instance}}"
		by = "instance"
	}
	quantile := func(q string) query {
		return query{fmt.Sprintf("histogram_quantile(%s, sum by (le) (rate(%s_bucket{%s}[$__rate_interval])))", q, m.Name, filter), "p" + strings.TrimPrefix(q, "0.")}
	}
	switch {
	case m.Kind == stats.Histogram:
		return []query{quantile("0.50"), quantile("0.99")}
	case m.Kind == stats.Counter:
		return []query{{fmt.Sprintf("sum by (%s) (rate(%s[$__rate_interval]))", by, chosen), legend}}
	case strings.HasSuffix(m.Name, "_timestamp_seconds"):
		return []query{{"time() - max by (" + by + ") (" + chosen + ")", legend}}
	default:
		return []query{{"sum by (" + by + ") (" + chosen + ")", legend}}
	}
}

func unit(m *stats.Metric) string {
	switch {
	case m.Unit == "s":
		return "s"
	case m.Unit == "By":
		return "Bps"
	case m.Kind == stats.Counter:
		return "ops"
	default:
		return "short"
	}
}

func dashboard() map[string]any {
	byName := map[string]*stats.Metric{}
	for i, m := range stats.Metrics() {
		byName[m.Name] = &stats.Metrics()[i]
	}
	const width, height, perRow = 8, 7, 3
	panels := []any{}
	y := 0
	for _, s := range sections {
		panels = append(panels, map[string]any{
			"id": len(panels) + 1, "type": "row", "title": s.title, "gridPos": position{H: 1, W: width * perRow, Y: y}, "panels": []any{},
		})
		y++
		for i, name := range s.metrics {
			at := position{H: height, W: width, X: i % perRow * width, Y: y + i/perRow*height}
			panels = append(panels, panel(len(panels)+1, byName["epochfence_"+name], at))
		}
		y += (len(s.metrics) + perRow - 1) / perRow * height
	}
	return map[string]any{
		"title": "epochfence", "uid": "epochfence", "tags": []string{"epochfence"}, "schemaVersion": 38, "editable": true,
		"refresh": "30s", "time": map[string]string{"from": "now-1h", "to": "now"},
		"templating": map[string]any{"list": []any{
			map[string]any{"name": "datasource", "type": "datasource", "query": "prometheus"},
			variable("job", "label_values(epochfence_member, job)"),
			variable("instance", `label_values(epochfence_member{job=~"$job"}, instance)`),
		}},
		"panels": panels,
	}
}

// position is in units of Grafana's grid, which is 24 wide.
type position struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

var source = map[string]string{"type": "prometheus", "uid": "${datasource}"}

func variable(name, query string) map[string]any {
	return map[string]any{
		"name": name, "type": "query", "datasource": source, "query": query, "refresh": 2, "includeAll": true, "multi": true, "allValue": ".*",
		"current": map[string]any{"text": "All", "value": "$__all"},
	}
}

func panel(id int, m *stats.Metric, at position) map[string]any {
	var targets []any
	for i, q := range queries(m) {
		targets = append(targets, map[string]any{"refId": string(rune('A' + i)), "expr": q.expression, "legendFormat": q.legend, "datasource": source})
	}
	return map[string]any{
		"id": id, "type": "timeseries", "title": strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(m.Name, "epochfence_"), "_total"), "_", " "),
		"description": m.Text(), "datasource": source, "gridPos": at, "targets": targets,
		"fieldConfig": map[string]any{"defaults": map[string]any{"unit": unit(m), "min": 0}, "overrides": []any{}},
	}
}
