package stats_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/operate/stats"
)

func TestTheTableKeepsTheConventions(t *testing.T) {
	name := regexp.MustCompile(`^epochfence_[a-z]+(_[a-z]+)*$`)
	known := map[string]bool{}
	for _, m := range stats.Metrics() {
		suffix := map[string]string{"s": "_seconds", "By": "_bytes"}[m.Unit]
		base := strings.TrimSuffix(m.Name, "_total")
		switch {
		case !name.MatchString(m.Name) || known[m.Name]:
			t.Errorf("%q is no name, or comes twice", m.Name)
		case (m.Kind == stats.Counter) != strings.HasSuffix(m.Name, "_total"):
			t.Errorf("%s is a %v", m.Name, m.Kind)
		case !strings.HasSuffix(base, suffix):
			t.Errorf("%s is in %s", m.Name, m.Unit)
		case m.Unit == "" || !strings.HasSuffix(m.Help, ".") || strings.Contains(m.Help, "\n"):
			t.Errorf("%s has unit %q and help %q", m.Name, m.Unit, m.Help)
		case (m.Kind == stats.Histogram) != (len(m.Buckets) > 0) || !slices.IsSorted(m.Buckets):
			t.Errorf("%s is a %v with buckets %v", m.Name, m.Kind, m.Buckets)
		case slices.Contains(m.Labels, "partition") != (m.Series == nil) || m.Series == nil && m.Kind == stats.Histogram:
			t.Errorf("%s is a %v with labels %v: no histogram has those of a partition", m.Name, m.Kind, m.Labels)
		}
		for _, s := range m.Series {
			if m.PerResource() {
				s = append([]string{"resource"}, s...)
			}
			if len(s) != len(m.Labels) {
				t.Errorf("%s has labels %v, and a series %v", m.Name, m.Labels, s)
			}
			for _, v := range s {
				if !regexp.MustCompile(`^[a-z_]+$`).MatchString(v) {
					t.Errorf("%s has a label %q", m.Name, v)
				}
			}
		}
		if otel := m.OpenTelemetry(); !strings.HasPrefix(otel, "epochfence.") || strings.HasSuffix(otel, "_total") || suffix != "" && strings.HasSuffix(otel, suffix) {
			t.Errorf("%s is %s for OpenTelemetry", m.Name, otel)
		}
		known[m.Name] = true
	}
}

func TestMetricsHaveTheNamesThatTheFieldKnows(t *testing.T) {
	known := map[string][]string{}
	for _, m := range stats.Metrics() {
		if m.KnownAs != "" {
			field := strings.Fields(m.KnownAs)[0]
			known[field] = append(known[field], strings.TrimPrefix(m.Name, "epochfence_"))
			if !strings.Contains(m.Text(), m.KnownAs) {
				t.Errorf("%s: %s", m.Name, m.Text())
			}
		}
	}
	for field, want := range map[string]string{
		"lock_acquire_success_total":          "claims_total lease_acquisitions_total",
		"lock_acquire_latency_ms":             "claim_duration_seconds lease_acquire_duration_seconds",
		"fencing_reject_total":                "fence_rejects_total lease_rejects_total",
		"token_gap":                           "token_gap lease_token_gap",
		"lease_expired_while_executing_total": "tenures_lost_in_flight_total leases_lost_working_total",
		"critical_write_without_token_total":  "unfenced_writes_total",
		"contention_hotspots":                 "lease_wait_seconds_total",
	} {
		if got := strings.Join(known[field], " "); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
}
