package mutation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

type builder struct {
	module, temp string
	needs        map[string][]string // the dependencies of each package's tests
}

func (b *builder) build(ctx context.Context, p *plan) error {
	if err := b.look(ctx, p.packages()); err != nil {
		return err
	}
	files, err := p.switches()
	if err != nil {
		return err
	}
	over, err := b.overlay("switches", files)
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Printf("building the tests of %d packages\n", len(p.packages()))
	args := []string{"test", "-c", "-o", b.binary(""), "-overlay=" + over, "-vet=off", "-ldflags=-s -w"}
	cmd := exec.CommandContext(ctx, "go", append(args, paths(p.packages())...)...)
	cmd.Dir = b.module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", strings.Join(p.packages(), ", "), err, out)
	}
	fmt.Printf("built in %.0f s\n", time.Since(began).Seconds())
	return nil
}

// binary returns the path of a package's test binary, or the directory of all.
func (b *builder) binary(pkg string) string {
	dir := filepath.Join(b.temp, "tests") + string(filepath.Separator)
	if pkg == "" {
		return dir
	}
	return dir + filepath.Base(pkg) + ".test"
}

// changed returns a mutant's files with the extension ext, or all of them, without the guard.
func (b *builder) changed(m mutant, ext string) (map[string]string, error) {
	files := map[string]string{}
	for name, cs := range m.changes {
		if ext != "" && filepath.Ext(name) != ext {
			continue
		}
		src, err := os.ReadFile(filepath.Join(b.module, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		files[name] = changed(string(src), whole(string(src)), cs)
	}
	return files, nil
}

// overlay writes files and the go command's overlay file below a directory. It returns the path of
// the overlay file.
func (b *builder) overlay(dir string, files map[string]string) (string, error) {
	dir = filepath.Join(b.temp, "overlay-"+dir)
	replace := map[string]string{} // the module's file -> the replacement
	for i, name := range slices.Sorted(maps.Keys(files)) {
		to := filepath.Join(dir, strconv.Itoa(i)+filepath.Ext(name))
		replace[filepath.Join(b.module, filepath.FromSlash(name))] = to
		if err := write(to, files[name]); err != nil {
			return "", err
		}
	}
	return writeJSON(filepath.Join(dir, "overlay.json"), map[string]any{"Replace": replace})
}

// scripts writes the SQL that a mutant replaces, and returns the file's path, or "".
func (b *builder) scripts(m mutant) (string, error) {
	after, err := b.changed(m, ".sql")
	if len(after) == 0 || err != nil {
		return "", err
	}
	other := map[string]string{}
	for name := range after {
		before, err := os.ReadFile(filepath.Join(b.module, filepath.FromSlash(name)))
		if err != nil {
			return "", err
		}
		other[string(before)] = after[name]
	}
	return writeJSON(filepath.Join(b.temp, strconv.Itoa(m.number)+".json"), other)
}

func writeJSON(to string, v any) (path string, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return to, write(to, string(data))
}

func write(to, text string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(text), 0o644)
}

// postgres starts a server for all tests, unless they need none or the environment names one. It
// returns the value for [pgtest.Env].
func (b *builder) postgres(ctx context.Context) (given string, stop func() error, err error) {
	given, stop = os.Getenv(pgtest.Env), func() error { return nil }
	if u, err := url.Parse(given); err == nil && u.Host != "" {
		return given, stop, nil
	}
	needed := slices.ContainsFunc(slices.Collect(maps.Values(b.needs)), func(all []string) bool { return slices.Contains(all, usesPostgres) })
	if !needed {
		return given, stop, nil
	}
	s, err := pgtest.Launch(ctx, pgtest.Options{NoFsync: true})
	if err != nil {
		return "", nil, err
	}
	return s.URL("postgres"), s.Close, nil
}

// Dependencies that classify tests.
const (
	usesPostgres = "github.com/epochfence/epochfence/internal/servers/pgtest"
	usesRapid    = "pgregory.net/rapid"
)

// look finds out the dependencies of the packages' tests.
func (b *builder) look(ctx context.Context, packages []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`}, paths(packages)...)...)
	cmd.Dir = b.module
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list what the tests of %s need: %w", strings.Join(packages, ", "), err)
	}
	b.needs = map[string][]string{}
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); strings.HasSuffix(words[0], ".test") {
			b.needs[strings.TrimSuffix(strings.TrimPrefix(words[0], "github.com/epochfence/epochfence/"), ".test")] = words[1:]
		}
	}
	return nil
}

func paths(packages []string) (all []string) {
	for _, pkg := range packages {
		all = append(all, "./"+pkg)
	}
	return all
}
