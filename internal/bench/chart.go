package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/wcharczuk/go-chart/v2"
)

// writeChart draws, as an SVG file, the ratios of the rows whose names begin with rows. A bar that
// reaches the line at 1 is as fast as its peer. It reports false if there is no such row.
func (rs results) writeChart(rows, title, file string) (drawn bool, err error) {
	var bars []chart.Value
	most := 1.0
	for _, r := range rs {
		if !strings.HasPrefix(r.Row, rows) || r.Of.late() || r.Reach == 0 {
			continue
		}
		_, what, _ := strings.Cut(r.Row, "/")
		ours := r.Ours[strings.LastIndex(r.Ours, "/")+1:]
		bars = append(bars, chart.Value{Value: r.Ratio, Label: fmt.Sprintf("%s %s\n÷ %s\n%.2f", what, ours, r.Peer[strings.LastIndex(r.Peer, "/")+1:], r.Ratio)})
		most = max(most, r.Ratio)
	}
	if len(bars) == 0 {
		return false, nil
	}
	c := chart.BarChart{
		Title: title, Width: 60 + 110*len(bars), Height: 420, BarWidth: 50, BarSpacing: 55, Bars: bars, UseBaseValue: true,
		Background: chart.Style{Padding: chart.Box{Top: 50, Bottom: 60}},
		YAxis: chart.YAxis{
			Range:     &chart.ContinuousRange{Min: 0, Max: most * 1.1},
			GridLines: []chart.GridLine{{Value: 1, Style: chart.Style{StrokeColor: chart.ColorAlternateGray, StrokeWidth: 1}}},
		},
	}
	f, err := os.Create(file)
	if err != nil {
		return false, err
	}
	return true, errors.Join(c.Render(chart.SVG, f), f.Close())
}
