//go:build unix

package mariadb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// The test binary starts itself again as a worker, with a DSN in its environment.
const dsnVar = "MARIADB_TEST_DSN"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(dsnVar); dsn != "" {
		fmt.Println("result:", work(dsn))
		return
	}
	os.Exit(m.Run())
}

// work locks its fence, as between the advance and COMMIT, and says so. Its transaction has three seconds.
func work(dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	s, err := sqlsink.Open(context.Background(), db, sqlsink.MariaDB, sqlsink.Options{})
	if err != nil {
		return err
	}
	f, err := claim(context.Background(), s, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return commit(ctx, s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := write(ctx, tx, "frozen"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `SELECT epoch FROM epochfence_fence FOR UPDATE`); err != nil {
			return err
		}
		fmt.Println("locked")
		<-ctx.Done() // it is frozen meanwhile
		return nil
	})
}

// The server ends the transaction of a frozen process soon after its time is over, though the process
// holds the connection. Until then a claim waits.
func TestAClaimWaitsForAFrozenOwnerUntilTheServerEndsItsTransaction(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, mariatest.Start(t))
	s := newSink(t, dsn, sqlsink.Options{})
	seeded(t, s)
	owner := servertest.StartSelf(t, dsnVar+"="+dsn)
	if line := <-owner.Lines; line != "locked" {
		t.Fatal(line)
	}
	owner.Freeze()
	began := time.Now()
	f, err := claim(t.Context(), s, 2)
	if err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(began); waited < time.Second || waited > 10*time.Second {
		t.Errorf("the claim waited %v, although the owner's transaction had 3 s", waited)
	}
	if err := commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "next") }); err != nil {
		t.Fatal(err)
	}
	owner.Signal(syscall.SIGCONT)
	if line := <-owner.Lines; line == "result: <nil>" {
		t.Error("the frozen process has committed")
	}
	if got, err := effects(t.Context(), open(t, dsn), "orders"); err != nil || len(got) != 1 || got[0] != "next" {
		t.Errorf("effects %q, %v", got, err)
	}
}

// A lock that is not free in time is nobody's fault.
func TestAClaimGivesUpAfterLockTimeout(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, mariatest.Start(t))
	s := newSink(t, dsn, sqlsink.Options{LockTimeout: time.Second})
	seeded(t, s)
	tx, err := open(t, dsn).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `SELECT epoch FROM epochfence_fence FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(t.Context(), s, 1); !errors.Is(err, epoch.ErrTransient) {
		t.Errorf("%v, want %v", err, epoch.ErrTransient)
	}
}
