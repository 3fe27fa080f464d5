package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"github.com/epochfence/epochfence/consumer"
)

func main() {
	dir := flag.String("o", ".", "`directory` to write status-….png to")
	many := flag.Bool("all", false, "also with none and with 500 partitions, and without script, to look at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := shoot(ctx, *dir, *many); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

type shot struct {
	name string
	look
}

func shoot(ctx context.Context, dir string, many bool) error {
	tab, end, err := browse(ctx)
	if err != nil {
		return err
	}
	defer end()
	three, err := busy(ctx)
	if err != nil {
		return err
	}
	defer three.close()
	shots := []shot{{"status", look{width: 1280}}, {"status-narrow", look{width: 390}}, {"status-dark", look{width: 1280, dark: true}}}
	if many {
		shots = append(shots, shot{"status-narrow-dark", look{width: 390, dark: true}}, shot{"status-noscript", look{width: 1280, noScript: true}})
	}
	for _, s := range shots {
		if err := take(tab, three.url(), dir, s); err != nil {
			return err
		}
	}
	if !many {
		return nil
	}
	for name, partitions := range map[string]int32{"0": 0, "500": 500} {
		c, err := newScene(setting{topic: "orders", group: "billing", owners: [2]string{"worker-1", "worker-2"}, partitions: partitions, title: "billing"})
		if err != nil {
			return err
		}
		err = c.owned(ctx, int(partitions))
		for _, s := range []shot{{"status-" + name, look{width: 1280, top: true}}, {"status-narrow-" + name, look{width: 390, top: true}}} {
			if err == nil {
				err = take(tab, c.url(), dir, s)
			}
		}
		c.close()
		if err != nil {
			return err
		}
	}
	p, err := picturesOfAnAct(tab, three)
	if err != nil {
		return err
	}
	for name, content := range p {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func picturesOfAnAct(tab context.Context, c *scene) (map[string][]byte, error) {
	pictures := map[string][]byte{}
	for name, at := range map[string]string{
		"partition": "partition?group=billing&topic=orders&number=0",
		"act":       "act?about=partition&group=billing&topic=orders&number=0&kind=pause&reason=the+warehouse+is+being+moved",
	} {
		for _, width := range []int64{1280, 390} {
			p, err := picture(tab, c.url()+at, look{width: width})
			if err != nil {
				return nil, err
			}
			pictures[fmt.Sprintf("status-%s-%d", name, width)] = p
		}
	}
	return pictures, nil
}

// busy returns a group of three partitions after a takeover, with a halted partition and dead
// letters.
func busy(ctx context.Context) (*scene, error) {
	c, err := newScene(setting{
		topic: "orders", group: "billing", owners: [2]string{"worker-1", "worker-2"}, partitions: 3, title: "billing",
		mayAct: anna, outbox: true,
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
	if err != nil {
		return nil, err
	}
	if err := c.owned(ctx, 3); err != nil {
		return c, err
	}
	for n := range int32(3) {
		for i := range 60 {
			c.log.Append(n, fmt.Sprint(i))
		}
	}
	return c, c.takeover(ctx)
}

func take(tab context.Context, url, dir string, s shot) error {
	taken, err := picture(tab, url, s.look)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	small, err := shrink(taken)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, s.name+".png")
	fmt.Println(name, len(small), "bytes")
	return os.WriteFile(name, small, 0o644)
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
