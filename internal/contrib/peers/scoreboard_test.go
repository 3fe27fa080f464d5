package peers

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	trials  = flag.Int("trials", 1, "how often each kind is tried; 0 writes the rows' texts beside the counts that the file has")
	atOnce  = flag.Int("at", 24, "how many trials are played at a time")
	only    = flag.String("kind", "", "the only kind to try")
	file    = flag.String("json", "", "the file of results, of which the rows that were tried are replaced")
	verbose = flag.Bool("say", false, "print all that the workers say")
)

// result is a row of the file. docs/peers_test.go reads it.
type result struct {
	ID, Peer, Version, Form, Promise, Ran string
	Consumer                              bool
	Kinds                                 []counts // in the order of kinds
}

// counts says in how many trials something happened.
type counts struct {
	Of      int
	Doubled int
	Lost    int
	Waited  int // nobody could take over before the thaw, because the frozen transaction has locks
}

// outcome is that of one trial.
type outcome struct {
	doubled, lost int // of 20
	waited        bool
	said          string
	err           error
}

// The rows of epochfence must have no doubled effect, and every trial must come to its end. What
// others count is their result, not a failure.
func TestScoreboard(t *testing.T) {
	if testing.Short() {
		t.Skip("the trials need servers, and minutes")
	}
	some, err := chosen(flag.Args())
	if err != nil {
		t.Fatal(err)
	}
	var results []result
	if *trials > 0 {
		s := serve(t, some)
		some = slices.DeleteFunc(slices.Clone(some), func(r *row) bool {
			missing := r.needs != nil && r.needs(s) != ""
			if missing {
				t.Logf("%s: not tried: %s", r.id, r.needs(s))
			}
			return missing
		})
		results = play(t, s, some)
	}
	if *file != "" {
		if err := merge(*file, results); err != nil {
			t.Fatal(err)
		}
	}
}

func play(t *testing.T, s *servers, some []*row) []result {
	results := make([]result, len(some))
	var all sync.WaitGroup
	var mu sync.Mutex
	turn := make(chan struct{}, *atOnce)
	for i, r := range some {
		results[i] = result{ID: r.id, Version: r.used(t, s), Ran: time.Now().UTC().Format(time.DateOnly), Kinds: make([]counts, len(kinds))}
	}
	for trial := range *trials {
		for k, kind := range kinds {
			if *only != "" && *only != kind.name {
				continue
			}
			for i, r := range some {
				if r.play == nil {
					turn <- struct{}{}
				}
				all.Go(func() {
					if r.play == nil {
						defer func() { <-turn }()
					}
					o := s.play(t.Context(), r, kind)
					mu.Lock()
					defer mu.Unlock()
					t.Logf("%s, %s, %d: %d doubled, %d lost; %s", r.id, kind.name, trial+1, o.doubled, o.lost, o.said)
					if o.err != nil {
						t.Errorf("%s, %s, %d: %v", r.id, kind.name, trial+1, o.err)
						return
					}
					results[i].Kinds[k].add(o)
					if r.never && (o.doubled > 0 || o.lost > 0) {
						t.Errorf("%s, %s, %d: %d doubled, %d lost", r.id, kind.name, trial+1, o.doubled, o.lost)
					}
				})
			}
		}
	}
	all.Wait()
	for _, r := range results {
		t.Logf("%-30s %-12s %+v", r.ID, r.Version, r.Kinds)
	}
	return results
}

func (c *counts) add(o outcome) {
	c.Of++
	if o.doubled > 0 {
		c.Doubled++
	}
	if o.lost > 0 {
		c.Lost++
	}
	if o.waited {
		c.Waited++
	}
}

// used is the version in go.mod, because the information of a test's build has none, or that of a server.
func (r *row) used(t *testing.T, s *servers) string {
	t.Helper()
	if r.installed != nil {
		return r.installed(s, t)
	}
	found := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(r.module) + ` v(\S+)$`).FindSubmatch(goMod)
	switch {
	case r.module == "":
		return "this tree"
	case found == nil:
		return "unknown"
	}
	return string(found[1])
}

//go:embed go.mod
var goMod []byte

func TestEachPeerHasAVersion(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		if r.installed == nil && r.module != "" && r.used(t, nil) == "unknown" {
			t.Errorf("%s: go.mod does not require %q", r.id, r.module)
		}
	}
}

// merge puts results into a file, in the order of the rows and with their texts.
func merge(name string, results []result) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		text, err = []byte("[]"), nil
	}
	var before []result
	if err = errors.Join(err, json.Unmarshal(text, &before)); err != nil {
		return err
	}
	results = append(results, before...)
	var merged []string
	for _, r := range rows {
		i := slices.IndexFunc(results, func(has result) bool { return has.ID == r.id })
		if i < 0 {
			continue
		}
		one := results[i]
		one.Peer, one.Form, one.Promise, one.Consumer = r.name, r.form, r.promise, r.consumer
		line, err := json.Marshal(one)
		if err != nil {
			return err
		}
		merged = append(merged, string(line))
	}
	return os.WriteFile(name, []byte("[\n"+strings.Join(merged, ",\n")+"\n]\n"), 0o600)
}

// A run of some peers replaces their rows, and leaves those of others.
func TestARunReplacesTheRowsOfItsPeers(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "peers.json")
	first := []result{{ID: "river/default", Ran: "then"}, {ID: "redsync", Ran: "then"}, {ID: "a peer that is gone", Ran: "then"}}
	for _, results := range [][]result{first, {{ID: "redsync", Ran: "now"}}, nil} {
		if err := merge(name, results); err != nil {
			t.Fatal(err)
		}
	}
	var has []result
	text, err := os.ReadFile(name)
	if err = errors.Join(err, json.Unmarshal(text, &has)); err != nil {
		t.Fatal(err)
	}
	if len(has) != 2 || has[0].ID != "redsync" || has[0].Ran != "now" || has[1].Ran != "then" || has[1].Peer != "River" {
		t.Errorf("%+v", has)
	}
}

// pause is for the stage, whose time is that of other processes.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
