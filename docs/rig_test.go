package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// database is an empty one with epochfence's tables, and those of a script.
func database(t *testing.T, file string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), script(t, file)); err != nil {
		t.Fatal(err)
	}
	return pool
}

func script(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("sql", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// await asks until the answer is as wanted, for a minute.
func await(t *testing.T, pool *pgxpool.Pool, query, want string) {
	t.Helper()
	eventually(t, func() (bool, string) {
		var got string
		err := pool.QueryRow(t.Context(), query).Scan(&got)
		return err == nil && got == want, fmt.Sprintf("%s\n= %q, %v; want %q", query, got, err, want)
	})
}

// eventually calls is until it returns true, for a minute.
func eventually(t *testing.T, is func() (ok bool, now string)) {
	t.Helper()
	limit := time.After(time.Minute)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		ok, now := is()
		if ok {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			t.Fatal(now)
		}
	}
}
