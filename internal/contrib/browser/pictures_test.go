package browser

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/epochfence/epochfence/consumer"
)

// EPOCHFENCE_PICTURES names the directory for the pictures of docs/operating.md.
func TestPicturesOfTheStatusPage(t *testing.T) {
	dir := os.Getenv("EPOCHFENCE_PICTURES")
	if dir == "" {
		t.Skip("EPOCHFENCE_PICTURES is not set; make figures WHAT=pictures sets it")
	}
	b, c := newTab(t), busy(t)
	for name, l := range map[string]look{"status": {width: 1280}, "status-narrow": {width: 390}, "status-dark": {width: 1280, dark: true}} {
		b.do(chromedp.Func(l.as), chromedp.Navigate(c.url()))
		taken, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		small, err := shrink(taken)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), small, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// busy returns a group of three partitions after a takeover, with a halted partition and dead
// letters.
func busy(t *testing.T) *scene {
	t.Helper()
	c := open(t, setting{
		partitions: 3, title: "billing", mayAct: anna, outbox: true,
		fails: func(m consumer.Message) error {
			if m.Partition.Number == 0 && m.Offset%40 == 7 {
				return errors.New("no such customer")
			}
			return nil
		},
		poison: func(m consumer.Message) error {
			if m.Partition.Number == 2 && m.Offset == 30 {
				return errors.New("amount: not a number")
			}
			return nil
		},
	})
	for n := range int32(3) {
		for i := range 60 {
			c.log.Append(n, fmt.Sprint(i))
		}
	}
	c.takeover(t)
	return c
}

func shrink(taken []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(taken))
	if err != nil {
		return nil, err
	}
	count := map[color.Color]int{}
	for y := range from.Bounds().Dy() {
		for x := range from.Bounds().Dx() {
			count[from.At(x, y)]++
		}
	}
	var colours color.Palette
	for c := range count {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.Color) int { return count[b] - count[a] })
	to := image.NewPaletted(from.Bounds(), colours[:min(len(colours), 256)])
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, to)
	return b.Bytes(), err
}
