// Package tokentest shows on a real server which of its numbers can be fencing tokens. Such a number is,
// after each event, higher than all numbers that the server gave before the event.
package tokentest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// update is the environment variable that makes Show write the row, and not compare it.
const update = "EPOCHFENCE_TOKEN_ROWS"

// Server has a key with numbers. The optional functions are those of [castest.Rig].
type Server struct {
	Name     string
	Write    func(t testing.TB) // creates the key, or writes it again
	Delete   func(t testing.TB)
	Backup   func(t testing.TB) (restore func())
	Failover func(t testing.TB) (fail func())
	Numbers  map[string]func(t testing.TB) int64 // by name: the number of the last write
}

// Row is what became of a number: "grows" if it was higher after the event than all that were given
// before, and otherwise "repeats".
type Row struct {
	Number                            string
	Write, Deletion, Backup, Failover string `json:",omitempty"`
}

// Rows are those of a server.
type Rows struct {
	Server string
	Rows   []Row
}

// lost is how many writes a backup or a standby lacks.
const lost = 100

// Show plays a write, a deletion, a restored backup and a failover, each followed by a write, and
// compares the rows with those in docs/stores.
func Show(t *testing.T, s Server) {
	t.Helper()
	w := &watched{s: s, rows: map[string]*Row{}, highest: map[string]int64{}}
	for name := range s.Numbers {
		w.rows[name] = &Row{Number: name}
	}
	w.writes(t, 1)
	w.after(t, func() {}, func(r *Row) *string { return &r.Write })
	w.after(t, func() { s.Delete(t) }, func(r *Row) *string { return &r.Deletion })
	if s.Backup != nil {
		restore := s.Backup(t)
		w.writes(t, lost)
		w.after(t, restore, func(r *Row) *string { return &r.Backup })
	}
	if s.Failover != nil {
		fail := s.Failover(t)
		w.writes(t, lost)
		w.after(t, fail, func(r *Row) *string { return &r.Failover })
	}
	w.keep(t)
}

type watched struct {
	s       Server
	rows    map[string]*Row
	highest map[string]int64
}

func (w *watched) writes(t *testing.T, n int) {
	t.Helper()
	for range n {
		w.s.Write(t)
		for name, read := range w.s.Numbers {
			w.highest[name] = max(w.highest[name], read(t))
		}
	}
}

func (w *watched) after(t *testing.T, event func(), cell func(r *Row) *string) {
	t.Helper()
	event()
	w.s.Write(t)
	for name, read := range w.s.Numbers {
		if now := read(t); now > w.highest[name] {
			*cell(w.rows[name]) = "grows"
			w.highest[name] = now
		} else {
			*cell(w.rows[name]) = "repeats"
		}
	}
}

func (w *watched) keep(t *testing.T) {
	t.Helper()
	all := Rows{Server: w.s.Name}
	for _, name := range slices.Sorted(maps.Keys(w.rows)) {
		all.Rows = append(all.Rows, *w.rows[name])
	}
	now, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	now = append(now, '\n')
	docs := filepath.Join("..", "..", "docs", "stores")
	if _, err := os.Stat(docs); err != nil { // etcd's server is a directory deeper than the drivers
		docs = filepath.Join("..", docs)
	}
	path := filepath.Join(docs, strings.ToLower(strings.ReplaceAll(w.s.Name, " ", "-"))+".json")
	had, err := os.ReadFile(path)
	switch {
	case os.Getenv(update) != "":
		if err := os.WriteFile(path, now, 0o600); err != nil {
			t.Fatal(err)
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		t.Fatal(err)
	case !bytes.Equal(had, now):
		t.Errorf("the server's numbers are\n%sand %s has\n%s\nif the server is right, run make figures WHAT=tokens", now, path, had)
	}
}
