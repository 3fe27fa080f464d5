package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
)

// fetchable has the versions of PostgreSQL that can be fetched, by the value of Env: the newest,
// and the oldest that the sinks support.
var fetchable = map[string]string{
	"embedded":    "18.3.0",
	"embedded:18": "18.3.0",
	"embedded:17": "17.5.0",
	"embedded:14": "14.18.0",
}

func binaries() (string, error) {
	version, asked := fetchable[os.Getenv(Env)]
	if !asked {
		if dir, ok := installed(); ok {
			return dir, nil
		}
		version = fetchable["embedded"]
	}
	return fetched(version)
}

// installed looks on PATH and in Debian's directories, newest first.
func installed() (string, bool) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(debian, func(a, b string) int { return major(b) - major(a) })
	for _, dir := range append(dirs, debian...) {
		if complete(dir) {
			return dir, true
		}
	}
	return "", false
}

func major(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// fetched returns the embedded binaries. The first call on a machine downloads and extracts them.
func fetched(version string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	release, err := lockFile(filepath.Join(cache, "lock")) // go test runs packages in parallel
	if err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	defer release()

	home := filepath.Join(cache, version)
	bin := filepath.Join(home, "bin")
	if complete(bin) {
		return bin, nil
	}
	if err := os.RemoveAll(home); err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	cmd := exec.Command("go", "run", "-mod=readonly", "-buildvcs=false", ".", version, cache, home)
	cmd.Dir = fetchDir()
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w\n%s", err, out)
	}
	if !complete(bin) {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %s lacks initdb or postgres", bin)
	}
	return bin, nil
}

func fetchDir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "fetch")
}

// cacheDir returns the directory of fetched binaries. For root it is in the temporary directory,
// because the user that the server runs as cannot read root's home.
func cacheDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "epochfence-postgres")
	if _, _, switched := serverUser(); !switched {
		home, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, "epochfence", "postgres")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if !ownedByUs(dir) {
		return "", fmt.Errorf("%s is not ours alone: remove it", dir)
	}
	return dir, nil
}
