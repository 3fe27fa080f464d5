package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/template"
)

type machine struct {
	CPU      string
	Cores    int
	Go       string
	Postgres string
	Modules  []string // of the compared libraries, with versions
}

func (s *services) machine(ctx context.Context) (m machine, err error) {
	m = machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil { // on Linux
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/jackc/pgx/v5", "github.com/twmb/franz-go", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2",
				"github.com/segmentio/kafka-go", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-kafka/v3":
				m.Modules = append(m.Modules, strings.TrimPrefix(d.Path, "github.com/")+" "+d.Version)
			}
		}
	}
	return m, s.pool.QueryRow(ctx, "select split_part(version(), ' on ', 1)").Scan(&m.Postgres)
}

//go:embed page.tmpl
var text string

var page = template.Must(template.New("page").Parse(text))

func (s *services) writePage(ctx context.Context, rs results, file string) error {
	m, err := s.machine(ctx)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(rs.render(f, m), f.Close())
}

func (rs results) render(to io.Writer, m machine) error {
	return page.Execute(to, map[string]any{"Results": rs, "Machine": m})
}

// Rows returns the figures of the rows whose names begin with one of these, without those that begin
// with one that has a minus sign in front. The few rounds of a page do not determine a p99, so it is
// left out.
func (rs results) Rows(names ...string) (some results) {
	for _, r := range rs {
		is := false
		for _, name := range names {
			without, not := strings.CutPrefix(name, "-")
			if strings.HasPrefix(r.Row, without) {
				is = !not
			}
		}
		if is && r.Of != p99 {
			some = append(some, r)
		}
	}
	return some
}

// Median returns a figure for the page's text, or a dash if it was not measured.
func (rs results) Median(row, ours, peer string, of measure) string {
	for _, r := range rs {
		if r.Row == row && r.Ours == ours && r.Peer == peer && r.Of == of {
			return fmt.Sprintf("%.2f", r.Ratio)
		}
	}
	return "–"
}

// MedianOf is Median for what a variant has by itself. The page's text names the measure.
func (rs results) MedianOf(row, variant string, of measure) string {
	for _, r := range rs {
		switch {
		case r.Row != row || r.Of != of:
		case r.Ours == variant:
			return strings.TrimPrefix(of.Text(r.Value), string(of)+" ")
		case r.Peer == variant:
			return strings.TrimPrefix(of.Text(r.PeerValue), string(of)+" ")
		}
	}
	return "–"
}
