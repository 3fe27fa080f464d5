package stats

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// This file writes the statistics in the text format of Prometheus, without its client library.

// Exposition serves all metrics in Prometheus's text format, version 0.0.4, for programs without
// Prometheus's client. A program with the client uses operate/fenceprom, which adds the same metrics to
// the program's own.
func (s *Stats) Exposition() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(exposed(s.Read()))
	})
}

func exposed(families []Family) []byte {
	var b bytes.Buffer
	for _, f := range families {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", f.Name, helpEscaped.Replace(f.Text()), f.Name, f.Kind)
		for _, s := range f.Samples {
			if f.Kind != Histogram {
				b.WriteString(line(f.Name, f.Labels, s.Labels, s.Value))
				continue
			}
			names := append(append([]string{}, f.Labels...), "le")
			for i, n := range s.Buckets {
				b.WriteString(line(f.Name+"_bucket", names, append(append([]string{}, s.Labels...), value(f.Buckets[i])), float64(n)))
			}
			b.WriteString(line(f.Name+"_bucket", names, append(append([]string{}, s.Labels...), "+Inf"), float64(s.Count)))
			b.WriteString(line(f.Name+"_sum", f.Labels, s.Labels, s.Sum))
			b.WriteString(line(f.Name+"_count", f.Labels, s.Labels, float64(s.Count)))
		}
	}
	return b.Bytes()
}

var (
	helpEscaped  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func line(name string, labels, values []string, x float64) string {
	var b strings.Builder
	b.WriteString(name)
	for i, label := range labels {
		if i == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.WriteString(label + `="` + labelEscaped.Replace(strings.ToValidUTF8(values[i], "�")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	return b.String() + " " + value(x) + "\n"
}

func value(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
