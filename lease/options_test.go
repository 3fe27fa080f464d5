package lease

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestOptionsThatAreWrongAreRefusedWithTheReason(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			change func(*Options)
			want   string // in the error; empty for none
		}{
			{func(*Options) {}, ""},
			{func(o *Options) { o.Group = "" }, "Options.Group is empty"},
			{func(o *Options) { o.Group = strings.Repeat("x", mostName) }, ""},
			{func(o *Options) { o.Group = strings.Repeat("x", mostName+1) }, "Options.Group is"},
			{func(o *Options) { o.Group = "a/b %ü" }, ""},
			{func(o *Options) { o.Group = "\xff" }, `Options.Group is "\xff"; want valid UTF-8`},
			{func(o *Options) { o.Name = "\xff" }, `Options.Name is "\xff"; want valid UTF-8`},
			{func(o *Options) { o.Name = strings.Repeat("x", mostName+1) }, "of up to 512 bytes"},
			{func(o *Options) { o.TTL = leastTTL }, ""},
			{func(o *Options) { o.TTL = leastTTL - 1 }, "Options.TTL is 499.999999ms"},
			{func(o *Options) { o.TTL = mostTTL }, ""},
			{func(o *Options) { o.TTL = mostTTL + 1 }, "Options.TTL is 1h0m0.000000001s"},
			{func(o *Options) { o.TTL = -time.Second }, "Options.TTL is -1s"},
			{func(o *Options) { o.Resources = map[string]int32{"orders": 0} }, ""},
			{func(o *Options) { o.Resources = map[string]int32{"orders": -1} }, `Options.Resources has -1 of "orders"`},
			{func(o *Options) { o.Resources = map[string]int32{"": 1} }, `Options.Resources has 1 of ""`},
			{func(o *Options) { o.Resources = map[string]int32{"\xff": 1} }, `Options.Resources has 1 of "\xff"`},
		} {
			m, err := Open(t.Context(), memstore.New(), testOptions(&said{}, c.change))
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "lease: Options.")):
				t.Errorf("%v; want an error with %q", err, c.want)
			case err != nil && len(err.Error()) > 700:
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if m != nil {
				m.Close()
			}
		}
	})
}

func TestOptionsHaveTheDocumentedDefaults(t *testing.T) {
	o, err := Options{Group: "billing"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if o.TTL != 15*time.Second || o.MaxStall != time.Minute || o.Logger != slog.Default() || o.Name == "" {
		t.Errorf("%+v", o)
	}
	o.Joined(nil)
	if got := o.Removal("a/b"); got != `delete the key "a/b" of the store` {
		t.Errorf("the removal is %s", got)
	}
	if got := (&Member{Options: o}).Term(); got != 13500*time.Millisecond {
		t.Errorf("the term is %v", got)
	}
}
