package stats_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate/stats"
)

func TestTheTextFormatHasEachMetricOfTheTable(t *testing.T) {
	s := stats.New()
	hostile := epoch.Partition{Group: "a\"b\\c\nd", Topic: "\xff<script>", Number: 3}
	s.Observe(consumer.Joined{})
	s.Observe(consumer.Granted{Partition: hostile})
	s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: hostile}, Epoch: 7, Next: 41}, Waited: 300 * time.Millisecond})
	w := httptest.NewRecorder()
	s.Exposition().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if got, want := w.Header().Get("Content-Type"), "text/plain; version=0.0.4; charset=utf-8"; got != want {
		t.Errorf("content type %q, want %q", got, want)
	}
	text := w.Body.String()
	for _, m := range stats.Metrics() {
		if !strings.Contains(text, "# TYPE "+m.Name+" "+m.Kind.String()+"\n") || !strings.Contains(text, "# HELP "+m.Name+" ") {
			t.Errorf("%s is missing", m.Name)
		}
	}
	for _, line := range []string{
		`epochfence_member 1`,
		`epochfence_claims_total{outcome="claimed"} 1`,
		`epochfence_claim_duration_seconds_bucket{le="0.25"} 0`,
		`epochfence_claim_duration_seconds_bucket{le="0.5"} 1`,
		`epochfence_claim_duration_seconds_bucket{le="+Inf"} 1`,
		`epochfence_claim_duration_seconds_sum 0.3`,
		`epochfence_claim_duration_seconds_count 1`,
		`epochfence_partition_epoch{group="a\"b\\c\nd",topic="�<script>",partition="3"} 7`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
