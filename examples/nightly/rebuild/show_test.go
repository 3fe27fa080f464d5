package rebuild

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// short has one freeze at each of its points, and one kill.
func short() *Nightly {
	n := New(NATS, Postgres)
	n.Ticks, n.Freezes, n.Kills, n.every, n.ttl, n.parts = 4, 2, 1, 2*time.Second, time.Second, 4
	return n
}

func TestTheFencedIndexIsExactAtEachMomentAndTheUsualOneIsAMixture(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes half a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out bytes.Buffer
	b := show.NewBoard(&out)
	cs, err := short().play(ctx, b)
	if err != nil {
		t.Fatal(err, out.String())
	}
	status := conclude(b, cs)
	for _, c := range cs {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Name, c.Err)
		}
	}
	fenced, usual := cs[0], cs[1]
	if status != show.StatusExact || !fenced.Exact || fenced.audit.ticks < 4 {
		t.Errorf("fenced: status %d, %+v", status, fenced.audit)
	}
	if n := fenced.Crew.Outcomes(show.Stale); n < 2 {
		t.Errorf("%d steps of pods that were frozen were refused as stale, want one of each freeze", n)
	}
	if fenced.audit.unnamed == 0 {
		t.Error("the pod that was frozen before its part has not written it after its thaw, so nothing was refused")
	}
	if usual.Exact || usual.audit.mixtures == 0 {
		t.Errorf("baseline: %+v; no reader has found a mixture", usual.audit)
	}
	if t.Failed() {
		t.Log(out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences where there is no terminal")
	}
}

func TestAnInterruptStopsEverythingAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Minute)
	defer interrupt()
	var out, errOut bytes.Buffer
	go func() {
		defer interrupt()
		awaitFile(ctx, filepath.Join(dir, "*", "*-fenced.db"))
	}()
	if status := New(NATS).Run(ctx, nil, &out, &errOut); status != show.StatusHalted {
		t.Errorf("status %d: %s%s", status, out.String(), errOut.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func awaitFile(ctx context.Context, pattern string) {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

func TestWrongFlagsAreSaidClearly(t *testing.T) {
	for args, want := range map[string]string{
		"-ticks 0":             "-ticks is 0; want 1 to 10000",
		"-freezes -1":          "-freezes is -1; want 0 to 10000",
		"-kills x":             `invalid value "x"`,
		"-lease etcd://host":   "-lease is none of nats://HOST:PORT/BUCKET, postgres://…",
		"now":                  `unexpected argument "now"`,
		"-lease nats://host:1": "-lease: name the bucket, as in nats://HOST:PORT/BUCKET",
	} {
		var out, errOut bytes.Buffer
		if status := New(NATS, Postgres).Run(t.Context(), strings.Fields(args), &out, &errOut); status == show.StatusExact || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: status %d: %s%s", args, status, out.String(), errOut.String())
		}
	}
}
