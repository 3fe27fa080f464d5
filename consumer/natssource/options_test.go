package natssource

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func unconnected(t *testing.T) jetstream.JetStream {
	js, err := jetstream.New(&nats.Conn{})
	must(t, err)
	return js
}

func TestOptionsThatAreWrongAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	good := func() Options {
		return Options{Group: "g", JetStream: unconnected(t), Streams: []Stream{{Name: "orders"}}}
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string // empty for none
	}{
		{"good", func(*Options) {}, ""},
		{"any group", func(o *Options) { o.Group = "billing/eu west.*>" }, ""},
		{"no group", func(o *Options) { o.Group = "" }, "Options.Group is empty"},
		{"group that is not UTF-8", func(o *Options) { o.Group = "\xff" }, "Options.Group"},
		{"long group", func(o *Options) { o.Group = strings.Repeat("x", 513) }, "up to 512 bytes"},
		{"name with NUL", func(o *Options) { o.Name = "a\x00" }, "Options.Name"},
		{"no JetStream", func(o *Options) { o.JetStream = nil }, "jetstream.New"},
		{"no streams", func(o *Options) { o.Streams = nil }, "Options.Streams is empty"},
		{"stream without a name", func(o *Options) { o.Streams = []Stream{{}} }, "no name of a stream"},
		{"stream with a subject for a name", func(o *Options) { o.Streams = []Stream{{Name: "orders.new"}} }, `"orders.new"`},
		{"stream twice", func(o *Options) { o.Streams = []Stream{{Name: "a"}, {Name: "a"}} }, "twice"},
		{"filters and transform", func(o *Options) {
			o.Streams = []Stream{{Name: "a", Filters: []string{"x"}, Transform: &Transform{"x", "y"}}}
		}, "partitions come from one of them"},
		{"bucket with a dot", func(o *Options) { o.Bucket = "a.b" }, "Options.Bucket"},
		{"short lease", func(o *Options) { o.LeaseTTL = 500 * time.Millisecond }, "Options.LeaseTTL is 500ms"},
		{"negative lease", func(o *Options) { o.LeaseTTL = -time.Second }, "Options.LeaseTTL"},
		{"long lease", func(o *Options) { o.LeaseTTL = 2 * time.Hour }, "Options.LeaseTTL"},
		{"small buffer", func(o *Options) { o.BufferBytes = 1000 }, "Options.BufferBytes"},
		{"negative start timeout", func(o *Options) { o.StartTimeout = -1 }, "Options.StartTimeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good()
			c.change(&o)
			s, err := New(o)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("New: %v; want an error with %q", err, c.want)
			case c.want != "" && s != nil:
				t.Error("New returned a source with the error")
			}
		})
	}
}

func TestOptionsThatAreZeroHaveTheirDefaults(t *testing.T) {
	t.Parallel()
	s, err := New(Options{Group: "g", JetStream: unconnected(t), Streams: []Stream{{Name: "orders"}}})
	must(t, err)
	if s.Bucket != "epochfence" || s.LeaseTTL != 15*time.Second || s.BufferBytes != 64<<20 || s.StartTimeout != 30*time.Second || s.Name == "" || s.Logger == nil {
		t.Errorf("%+v", s.Options)
	}
}
