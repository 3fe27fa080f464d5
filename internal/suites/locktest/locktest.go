// Package locktest plays the histories of work under a lock with leases on a driver's server and
// effects in SQLite and PostgreSQL.
//
// The tests of a driver must not import drivers of these databases, because whoever uses the driver
// would download them (internal/mutation). So the histories run in a program, the test of package play,
// which reaches the store by HTTP.
package locktest

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
)

const module = "github.com/epochfence/epochfence"

// Env is the environment variable that gives the program the address of the store.
const Env = "EPOCHFENCE_LOCKTEST"

// Run plays the histories on a rig, each as a subtest.
func Run(t *testing.T, create func(t testing.TB) castest.Rig) {
	if testing.Short() {
		t.Skip("servers are not for -short")
	}
	s := newServer(t, create)
	program := build(t)
	serving := httptest.NewServer(s)
	defer serving.Close()
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", "^TestLocks$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), Env+"="+serving.URL)
	out, err := cmd.CombinedOutput()
	shown := 0
	for _, m := range regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): TestLocks/(.*) \([^)]*\)$`).FindAllStringSubmatch(string(out), -1) {
		shown++
		t.Run(m[2], func(t *testing.T) {
			switch m[1] {
			case "FAIL":
				t.Fail()
			case "SKIP":
				t.Skip("skipped in the program")
			}
		})
	}
	if err != nil || shown == 0 {
		t.Fatalf("%v, %d histories\n%s", err, shown, out)
	}
}

func build(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "locktest")
	args := []string{"test", "-c", "-o", program}
	if raced() {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./internal/suites/locktest/play")...)
	cmd.Dir = strings.TrimSpace(string(root))
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return program
}

// raced reports whether the race detector is on.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Rig returns a rig that the test of a driver creates. url is the value of the variable [Env].
func Rig(t testing.TB, url string) castest.Rig {
	var rig int
	do := func(what string) answer {
		a, err := (&client{url: url, number: rig}).once(t.Context(), request{Do: what})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	has := do("rig")
	rig = has.Number
	r := castest.Rig{Strands: has.Strands, Open: func(testing.TB, func(string) string) cas.Store {
		opened := do("open")
		c := &client{url: url, number: opened.Number}
		if opened.Watches {
			return watched{c}
		}
		return c
	}}
	if has.BacksUp {
		r.Backup = func(testing.TB) func() {
			do("backup")
			return func() { do("restore") }
		}
	}
	return r
}

// client is a store that another process has open.
type client struct {
	url    string
	number int
}

// ask sends a request, once, and yields its answers.
func (c *client) ask(ctx context.Context, q request) iter.Seq2[answer, error] {
	return func(yield func(answer, error) bool) {
		q.Number = c.number
		var body bytes.Buffer
		err := gob.NewEncoder(&body).Encode(q)
		var r *http.Request
		if err == nil {
			r, err = http.NewRequestWithContext(ctx, http.MethodPost, c.url, &body)
		}
		var got *http.Response
		if err == nil {
			got, err = http.DefaultClient.Do(r)
		}
		if err != nil {
			yield(answer{}, fmt.Errorf("locktest: %s %q: %w", q.Do, q.Key, err))
			return
		}
		defer func() { _ = got.Body.Close() }()
		for from := gob.NewDecoder(got.Body); ; {
			var a answer
			err := from.Decode(&a)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				err = fmt.Errorf("locktest: %s %q: the answer: %w", q.Do, q.Key, err)
			case a.Is > 0:
				err = fmt.Errorf("%w: %s", sentinels[a.Is-1], a.Error)
			case a.Error != "":
				err = errors.New(a.Error)
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// once returns the only answer.
func (c *client) once(ctx context.Context, q request) (answer, error) {
	for a, err := range c.ask(ctx, q) {
		return a, err
	}
	return answer{}, fmt.Errorf("locktest: %s %q: no answer", q.Do, q.Key)
}

func (c *client) Facts(ctx context.Context) (cas.Facts, error) {
	a, err := c.once(ctx, request{Do: "facts"})
	return a.Facts, err
}

func (c *client) Get(ctx context.Context, key string) (cas.Item, error) {
	a, err := c.once(ctx, request{Do: "get", Key: key})
	return a.Item, err
}

func (c *client) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	a, err := c.once(ctx, request{Do: "swap", Key: seen.Key, Seen: seen, Value: value, Note: note})
	return a.Item, err
}

func (c *client) Delete(ctx context.Context, seen cas.Item) error {
	_, err := c.once(ctx, request{Do: "delete", Key: seen.Key, Seen: seen})
	return err
}

func (c *client) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return c.items(ctx, request{Do: "list", Key: prefix})
}

func (c *client) items(ctx context.Context, q request) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for a, err := range c.ask(ctx, q) {
			if !yield(a.Item, err) {
				return
			}
		}
	}
}

// watched is a client of a store that reports changes.
type watched struct{ *client }

func (w watched) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return w.items(ctx, request{Do: "watch", Key: prefix})
}
