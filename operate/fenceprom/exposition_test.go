package fenceprom_test

import (
	"bytes"
	"cmp"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate/fenceprom"
	"github.com/epochfence/epochfence/operate/stats"
)

// What operate/stats writes by itself is what client_golang writes of it, but for the order.
func TestTheTextOfStatsIsThatOfTheClient(t *testing.T) {
	s := stats.New()
	p := epoch.Partition{Group: "a\"b\\c\nd", Topic: "ü", Number: 3}
	s.Observe(consumer.Joined{})
	s.Observe(consumer.Granted{Partition: p})
	s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 7, Next: 41}, Waited: 300 * time.Millisecond})
	s.ObserveLease(lease.Acquired{Resource: lease.Resource{Name: "a\"b\\c\nd\xff"}, Waited: 3 * time.Second})
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(fenceprom.New(s)); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.Exposition().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range families {
		got := parsed[want.GetName()]
		if got == nil {
			t.Errorf("%s is missing", want.GetName())
			continue
		}
		if has, wants := lines(t, got), lines(t, want); !slices.Equal(has, wants) {
			t.Errorf("%s:\n%q\nwant\n%q", want.GetName(), has, wants)
		}
	}
}

// lines are those of a family, in an order that does not depend on who made it.
func lines(t *testing.T, f *dto.MetricFamily) []string {
	t.Helper()
	for _, m := range f.Metric {
		slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	}
	var b bytes.Buffer
	if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
		t.Fatal(err)
	}
	sorted := strings.Split(b.String(), "\n")
	slices.Sort(sorted)
	return sorted
}
