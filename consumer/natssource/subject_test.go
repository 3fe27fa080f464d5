package natssource

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"pgregory.net/rapid"
)

func TestTwoSubjectsOverlapIfTheServerSaysSo(t *testing.T) {
	t.Parallel()
	subject := rapid.Custom(func(t *rapid.T) string {
		tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*"}), 1, 4).Draw(t, "tokens")
		if rapid.Bool().Draw(t, "open") {
			tokens = append(tokens, everything)
		}
		return strings.Join(tokens, ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := subject.Draw(t, "a"), subject.Draw(t, "b")
		if got, want := overlap(a, b), server.SubjectsCollide(a, b); got != want {
			t.Errorf("overlap(%q, %q) = %v, the server says %v", a, b, got, want)
		}
	})
}

func TestFiltersThatCannotMakePartitionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		filters []string
		stored  []string
		says    string // "" if they can
	}{
		{name: "apart", filters: []string{"a.*", "b.>", "c"}, stored: []string{"*.>", "c"}},
		{name: "what the stream holds is not known", filters: []string{"a"}},
		{name: "the same twice", filters: []string{"a", "b", "a"}, says: "filters 0 and 2"},
		{name: "by a wildcard", filters: []string{"a.*", "a.b"}, says: "in two partitions"},
		{name: "by an open end", filters: []string{"a.b.c", "a.>"}, says: "in two partitions"},
		{name: "outside the stream", filters: []string{"a.x", "b.x"}, stored: []string{"a.*"}, says: `filter 1, "b.x"`},
		{name: "empty", filters: []string{""}, says: "empty token"},
		{name: "empty token", filters: []string{"a..b"}, says: "empty token"},
		{name: "white space", filters: []string{"a b"}, says: "white space"},
		{name: "open end inside", filters: []string{"a.>.b"}, says: "continues after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkFilters(c.filters, c.stored)
			if c.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("checkFilters = %v, want one that says %q", err, c.says)
			}
		})
	}
}
