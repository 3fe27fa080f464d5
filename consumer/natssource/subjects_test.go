package natssource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestPartitionsComeFromTheDestinationOfATransform(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		destination string
		want        []string
		says        string
	}{
		{destination: "p.{{partition(3,1)}}.{{wildcard(1)}}", want: []string{"p.0.*", "p.1.*", "p.2.*"}},
		{destination: "{{ Partition( 2 , 1, 2) }}.$1.$2", want: []string{"0.*.*", "1.*.*"}},
		{destination: "p.{{partition(1,1)}}.>", want: []string{"p.0.>"}},
		{destination: "p.{{partition(2)}}", want: []string{"p.0", "p.1"}},
		{destination: "p.{{wildcard(1)}}", says: "no {{partition"},
		{destination: "", says: "no {{partition"},
		{destination: "{{partition(2,1)}}.{{partition(3,1)}}", says: "two partition functions"},
		{destination: "{{partition(0,1)}}", says: `makes "0" partitions`},
		{destination: "{{partition(x,1)}}", says: `makes "x" partitions`},
		{destination: "{{partition(10001,1)}}", says: "want 1 to 10000"},
		{destination: "{{partition(2,1)}}.{{split(1,-)}}", says: "name the filters"},
		{destination: "{{partition(2,1)}}..x", says: "empty token"},
		{destination: "{{partition(2,1)}}.*", says: "not '*'"},
	} {
		got, err := Transform{Source: "a.*.*", Destination: c.destination}.filters()
		switch {
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%q: %v, want an error that says %q", c.destination, err, c.says)
		case c.says == "" && (err != nil || !slices.Equal(got, c.want)):
			t.Errorf("%q: %q, %v; want %q", c.destination, got, err, c.want)
		}
	}
}

// What the server stores under must be what we read.
func TestEveryMessageIsInThePartitionThatTheServerPutsItIn(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	js := natstest.Start(t).JetStream(t)
	for i, tr := range []Transform{
		{"a.*.*", "pa.{{partition(5,1,2)}}.{{wildcard(2)}}.{{wildcard(1)}}"},
		{"b.*.>", "pb.{{partition(4,1)}}.$1.>"},
	} {
		name := fmt.Sprint("S", i)
		subject := strings.NewReplacer(".*", "", ".>", "").Replace(tr.Source)
		s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{tr.Source}})
		if err != nil {
			t.Fatal(err)
		}
		if err := EnsureTransform(ctx, js, name, tr); err != nil {
			t.Fatal(err)
		}
		const messages = 50
		for j := range messages {
			if _, err := js.Publish(ctx, fmt.Sprintf("%s.x%d.y%d", subject, j, j%7), nil); err != nil {
				t.Fatal(err)
			}
		}
		filters, err := tr.filters()
		if err != nil {
			t.Fatal(err)
		}
		for seq := range uint64(messages) {
			m, err := s.GetMsg(ctx, seq+1)
			if err != nil {
				t.Fatal(err)
			}
			in := 0
			for _, f := range filters {
				if overlap(f, m.Subject) {
					in++
				}
			}
			if in != 1 {
				t.Errorf("%q is in %d partitions of %q", m.Subject, in, filters)
			}
		}
	}
}

func TestATransformIsSetOnAnEmptyStreamAndOnlyThere(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	js := natstest.Start(t).JetStream(t)
	const name = "payments"
	want := Transform{"payments.*", "payments.{{partition(4,1)}}.{{wildcard(1)}}"}
	if err := EnsureTransform(ctx, js, name, want); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("EnsureTransform of a stream that is missing: %v", err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{"payments.*"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // sets, then checks
		if err := EnsureTransform(ctx, js, name, want); err != nil {
			t.Fatal(err)
		}
	}
	if err := EnsureTransform(ctx, js, name, Transform{"payments.*", "payments.{{ Partition(4, 1) }}.{{wildcard(1)}}"}); err != nil {
		t.Errorf("written in another way: %v", err)
	}
	if _, err := js.Publish(ctx, "payments.a", nil); err != nil {
		t.Fatal(err)
	}
	if err := EnsureTransform(ctx, js, name, want); err != nil {
		t.Errorf("the same on a stream with messages: %v", err)
	}
	other := want
	other.Destination = "payments.{{partition(8,1)}}.{{wildcard(1)}}"
	var differs *TransformError
	if err := EnsureTransform(ctx, js, name, other); !errors.As(err, &differs) {
		t.Fatalf("another on a stream with messages: %v", err)
	}
	if differs.Want != other || *differs.Have != want || differs.Held != 1 || differs.Stream != name {
		t.Errorf("%+v does not say what differs", differs)
	}
	for _, part := range []string{want.Destination, other.Destination, `"payments"`} {
		if !strings.Contains(differs.Error(), part) {
			t.Errorf("%q does not say %q", differs, part)
		}
	}
	if err := EnsureTransform(ctx, js, name, Transform{"payments.*", "x"}); err == nil || !strings.Contains(err.Error(), "no {{partition") {
		t.Errorf("a destination without partitions: %v", err)
	}
}

// bounded is a context for one test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestPartitionsOfATransformAreReadWhereTheServerPutTheMessages(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	transform := Transform{"in.*", "elsewhere.{{partition(3,1)}}.{{wildcard(1)}}"}
	r := &logRig{t: t, ctx: bounded(t), js: js, Stream: Stream{Name: "in", Transform: &transform}}
	must(t, second(js.CreateStream(r.ctx, jetstream.StreamConfig{Name: "in", Subjects: []string{"in.*"}})))
	must(t, EnsureTransform(r.ctx, js, "in", transform))
	const total = 60
	for i := range total {
		must(t, second(js.Publish(r.ctx, fmt.Sprint("in.", i), []byte(fmt.Sprint(i)))))
	}
	r.log = r.open(js)
	var readings []*reading
	for n := range r.log.partitions() {
		readings = append(readings, r.read(r.fence(n, 1)))
	}
	count := func() (all int) {
		for _, g := range readings {
			all += len(g.all())
		}
		return all
	}
	eventually(t, "every message is read", func() bool { return count() >= total })
	seen := map[string]bool{}
	for n, g := range readings {
		for _, m := range g.all() {
			if want := fmt.Sprintf("elsewhere.%d.%s", n, m.Value); string(m.Key) != want || seen[want] {
				t.Errorf("partition %d has read %q under %q", n, m.Value, m.Key)
			}
			seen[string(m.Key)] = true
		}
	}
	if len(seen) != total {
		t.Errorf("%d messages were read, want %d", len(seen), total)
	}
}

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
