// Package showtest plays the shows of the examples in their tests.
package showtest

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// Exact plays a show of a few minutes at most with these flags, or as it is set if there are none. It
// fails the test unless the fenced column is exact and the baseline, if there is one, is not.
func Exact(t *testing.T, s show.Show, args ...string) []*show.Column {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out bytes.Buffer
	if len(args) > 0 {
		if err := show.Parse(s, args, &out); err != nil {
			t.Fatal(err, out.String())
		}
	}
	cs, status, err := show.Play(ctx, s, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if status != show.StatusExact {
		t.Errorf("status %d", status)
	}
	for _, c := range cs {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Name, c.Err)
		}
		if c.Exact != (c.Name == show.Fence) {
			t.Errorf("%s: exact is %v", c.Name, c.Exact)
		}
	}
	return cs
}

// Interrupted interrupts a show once a database file that matches has a row in a table. It fails the test
// if anything is left in the temporary directory.
func Interrupted(t *testing.T, s show.Show, pattern, table string, args ...string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Minute)
	defer interrupt()
	var out bytes.Buffer
	go func() {
		defer interrupt()
		awaitRow(ctx, filepath.Join(dir, "*", pattern), table)
	}()
	if status := show.Run(ctx, s, args, &out, &out); status != show.StatusHalted {
		t.Errorf("status %d: %s", status, out.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// awaitRow leaves a file alone until there is a write-ahead log: of two that turn that on at a time SQLite
// refuses one, without waiting.
func awaitRow(ctx context.Context, pattern, table string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for rows := 0; rows == 0 && ctx.Err() == nil; <-tick.C {
		found, _ := filepath.Glob(pattern + "-wal")
		if len(found) == 0 {
			continue
		}
		db, err := show.OpenDatabase(ctx, strings.TrimSuffix(found[0], "-wal"), "")
		if err != nil {
			continue
		}
		rows, _ = db.Count(ctx, "SELECT count(*) FROM "+table) // until there is a table
		db.Close()
	}
}

// Refused runs a show with flags that are wrong, or that name services which do not answer. It fails the
// test unless the show says so soon, in these words, and without the password "secret".
func Refused(t *testing.T, status int, show func() show.Show, said map[string]string) {
	t.Helper()
	for args, want := range said {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			refused(t, status, show(), strings.Fields(args), want)
		})
	}
}

func refused(t *testing.T, status int, s show.Show, args []string, want string) {
	t.Helper()
	var out bytes.Buffer
	began := time.Now()
	got := show.Run(t.Context(), s, args, &out, &out)
	if got != status || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "secret") {
		t.Errorf("status %d, want %d and %q: %s", got, status, want, out.String())
	}
	if took := time.Since(began); took > 3*show.Reachable {
		t.Errorf("took %v", took)
	}
}

// Mute returns the address of a server that accepts connections and says nothing.
func Mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
