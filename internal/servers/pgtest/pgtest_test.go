package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Start(t), pgtest.Start(t)
	if a.Name == b.Name {
		t.Fatalf("both are named %s", a.Name)
	}
	if _, err := a.Superuser(t).Exec(t.Context(), "create table only_in_a ()"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Superuser(t).Exec(t.Context(), "create table only_in_a ()"); err != nil {
		t.Fatal(err)
	}
}

func TestARoleHasNoRightButToLogIn(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	if _, err := db.Superuser(t).Exec(t.Context(), "create table secret (); revoke all on schema public from public"); err != nil {
		t.Fatal(err)
	}
	name, url := db.Role(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var who string
	if err := conn.QueryRow(t.Context(), "select current_user").Scan(&who); err != nil || who != name {
		t.Fatalf("current_user is %q, %v; want %q", who, err, name)
	}
	if _, err := conn.Exec(t.Context(), "select * from public.secret"); err == nil {
		t.Fatal("the role read a table of the superuser")
	}
}

func TestWhatWasCommittedSurvivesAnImmediateStop(t *testing.T) {
	t.Parallel()
	s := pgtest.StartServer(t, pgtest.Options{})
	db := s.Database(t)
	if _, err := db.Superuser(t).Exec(t.Context(), "create table kept (n int); insert into kept values (7)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(t.Context(), db.URL); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("the server still answers")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.Superuser(t).QueryRow(t.Context(), "select n from kept").Scan(&n); err != nil || n != 7 {
		t.Fatalf("found %d, %v", n, err)
	}
}

func TestFsyncIsOnUnlessAskedOtherwise(t *testing.T) {
	t.Parallel()
	for _, o := range []pgtest.Options{{}, {NoFsync: true}} {
		var fsync string
		db := pgtest.StartServer(t, o).Database(t)
		if err := db.Superuser(t).QueryRow(t.Context(), "show fsync").Scan(&fsync); err != nil || (fsync == "off") != o.NoFsync {
			t.Fatalf("with %+v fsync is %s, %v", o, fsync, err)
		}
	}
}

// TestMain lets the test below run this binary as a program that dies.
func TestMain(m *testing.M) {
	if os.Getenv("PGTEST_DIES") == "" {
		os.Exit(m.Run())
	}
	s, err := pgtest.Launch(context.Background(), pgtest.Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.URL("postgres"))
	select {}
}

func TestTheServerDiesWithAProcessThatIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PGTEST_DIES=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, _ := bufio.NewReader(out).ReadString('\n')
	url = strings.TrimSpace(url)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if !strings.HasPrefix(url, "postgres://") {
		t.Fatalf("the program said %q", url)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err != nil && ctx.Err() == nil {
			return
		}
		if conn != nil {
			_ = conn.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the server outlives the process that started it")
		}
	}
}
