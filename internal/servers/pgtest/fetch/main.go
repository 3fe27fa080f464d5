// Command fetch downloads a version of PostgreSQL and puts its binaries into a directory, which
// must not exist yet:
//
//	go run . 18.3.0 archives directory
//
// It keeps downloaded archives in the second argument, and does not download them again.
//
// It is a separate module, because only machines without PostgreSQL need its dependencies.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: fetch version archives directory")
		os.Exit(2)
	}
	if err := fetch(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fetch(version, archives, dir string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "extract-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Setenv("TMPDIR", tmp); err != nil { // for files that the library leaves behind
		return err
	}
	extracted := filepath.Join(tmp, "postgres")
	// Start downloads, extracts, and then calls initdb, which does not work as root. pgtest runs
	// initdb itself as another user. An encoding that does not exist makes Start fail at initdb.
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		Port(0).
		CachePath(archives).
		BinariesPath(extracted).
		RuntimePath(filepath.Join(tmp, "run")).
		Encoding("none").
		Logger(io.Discard)).Start()
	if err == nil {
		return errors.New("initdb accepted an encoding that does not exist")
	}
	if _, missing := os.Stat(filepath.Join(extracted, "bin", "postgres")); missing != nil {
		return fmt.Errorf("PostgreSQL %s for %s/%s: %w", version, runtime.GOOS, runtime.GOARCH, err)
	}
	return os.Rename(extracted, dir)
}
