package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// drawing is a chart of the rows whose names begin with rows.
type drawing struct{ rows, Title, File string }

func (s *services) writePage(ctx context.Context, rs results, file string) error {
	m, err := s.machine(ctx)
	if err != nil {
		return err
	}
	charts, err := rs.draw(file)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(rs.render(f, m, charts), f.Close())
}

// drawings returns the charts of a page, beside which their files are.
func drawings(page string) []drawing {
	base := strings.TrimSuffix(filepath.Base(page), ".md")
	return []drawing{
		{"fence/batch", "A pgsink transaction, by messages in it, ÷ the same without a guard", base + "-fence.svg"},
		{"kafka/", "From Kafka", base + "-kafka.svg"},
		{"nats/", "From JetStream", base + "-nats.svg"},
	}
}

// draw writes the charts of a page, and returns those for which there are figures.
func (rs results) draw(page string) (charts []drawing, err error) {
	for _, d := range drawings(page) {
		drawn, err := rs.writeChart(d.rows, d.Title, filepath.Join(filepath.Dir(page), d.File))
		if err != nil {
			return charts, err
		}
		if drawn {
			charts = append(charts, d)
		}
	}
	return charts, nil
}

func (rs results) render(to io.Writer, m machine, charts []drawing) error {
	return page.Execute(to, map[string]any{"Results": rs, "Machine": m, "Charts": charts})
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
