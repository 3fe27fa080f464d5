package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestExitCodes(t *testing.T) {
	c := golden(t)
	text := filepath.Join(t.TempDir(), "text.db")
	must(t, os.WriteFile(text, []byte(strings.Repeat("no database ", 1000)), 0o644))
	for _, l := range []struct {
		code int
		args string
	}{
		{exitOK, ""},
		{exitOK, "list"},
		{exitOK, "help rewind"},
		{exitOK, "evict orders/0"},
		{exitOK, "pause orders/1 --execute --by anna --reason again"}, // it is paused
		{exitOK, "check --topic orders --group billing --help"},
		{exitError, "list orders/77"},
		{exitError, "list another/orders/0"},
		{exitError, "deadletters show 99"},
		{exitError, "skip orders/0 --through 1"}, // it is past that
		{exitError, "evict orders/6"},            // it is in another database
		{exitError, "outbox list --schema elsewhere_"},
		{exitError, "list --database file:/nowhere/at/all.db"},
		{exitError, "list --database file:" + text},
		{exitError, "list --group nobody"},
		{exitError, "describe --group nobody"},
		{exitError, "owners --topic nothing"},
		{exitError, "history --group nobody"},
		{exitError, "evict --group nobody --topic orders"},
		{exitTrouble, "check --group nobody"},
		{exitUsage, "lists"},
		{exitUsage, "list --colour"},
		{exitUsage, "list orders"},
		{exitUsage, "list orders/x"},
		{exitUsage, `list "orders/3`},
		{exitUsage, "list --format yaml"},
		{exitUsage, "list --database oracle://localhost/x"},
		{exitUsage, "rewind orders/0"},
		{exitUsage, "rewind --to start"},
		{exitUsage, "rewind orders/0 --to yesterday"},
		{exitUsage, "rewind orders/0 --to @yesterday"},
		{exitUsage, "rewind orders/0 --to 4"},  // beyond the end
		{exitUsage, "rewind orders/0 --to -9"}, // before the beginning
		{exitUsage, "rewind orders/0 --to 1 --execute"},
		{exitUsage, "rewind orders/0 --to 1 --execute --by anna --reason="},
		{exitUsage, "rebase orders/3"},
		{exitUsage, "rebase orders/3 --to -1"},
		{exitUsage, "explain"},
		{exitUsage, "explain orders/0 --at 12:03 --offset 3"},
		{exitUsage, "explain orders/0 --claim nonsense"},
		{exitUsage, "history --limit 0"},
		{exitUsage, "deadletters"},
		{exitUsage, "deadletters show one"},
		{exitUsage, "grants --role app --as boss"},
		{exitUsage, "grants --role app --as reader"}, // SQLite has none
		{exitUsage, "check --max-lag 1 --kafka="},
		{exitTrouble, "check"},
		{exitTrouble, "doctor"},
		{exitChanged, "rewind orders/0 --to 1 --plan 000000000000 --execute --by anna --reason now"},
		{exitChanged, "deadletters discard 2 --plan 000000000000 --execute --by anna --reason now"},
	} {
		env := c.env
		if strings.Contains(l.args, "--kafka=") {
			env = map[string]string{"EPOCHFENCE_DATABASE": c.env["EPOCHFENCE_DATABASE"]}
		}
		a := (&cli{t, env}).run(strings.Fields(l.args)...)
		if a.code != l.code {
			t.Errorf("epochfence %s: exit code %d, want %d\n%s%s", l.args, a.code, l.code, a.out, a.errs)
		}
		if said := a.errs != ""; said != (l.code != exitOK && l.code != exitTrouble) {
			t.Errorf("epochfence %s: the error output is %q", l.args, a.errs)
		}
	}
	if a := (&cli{t, nil}).run("list"); a.code != exitUsage || !strings.Contains(a.errs, "EPOCHFENCE_DATABASE") {
		t.Errorf("without a database: %+v", a)
	}
}

// Of several acts the worst counts.
func TestTheExitCodeOfSeveralActs(t *testing.T) {
	stale := fmt.Errorf("one: %w", epoch.ErrStale)
	for want, err := range map[int]error{
		exitOK:      nil,
		exitError:   errors.Join(errors.New("one"), nil),
		exitChanged: errors.Join(errors.New("one"), stale, errTrouble),
		exitDoubt:   errors.Join(stale, fmt.Errorf("two: %w", epoch.ErrInDoubt)),
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// lossy is an operator whose acts and their answers are lost.
type lossy struct{ operate.Operator }

func (lossy) Act(context.Context, operate.Act) (epoch.Fence, error) {
	return epoch.Fence{}, fmt.Errorf("the connection broke: %w", epoch.ErrInDoubt)
}

func (lossy) DoOutbox(context.Context, operate.OutboxAct) error { return epoch.ErrInDoubt }

// lossyDatabase has a lossy operator.
type lossyDatabase struct{ database }

func (d lossyDatabase) operator(ctx context.Context) (operate.Operator, error) {
	op, err := d.database.operator(ctx)
	return lossy{op}, err
}

func TestAnActOnTheOutboxInDoubtNamesACommandThatExists(t *testing.T) {
	c := golden(t)
	db, err := openAt(t.Context(), flags{database: c.env["EPOCHFENCE_DATABASE"], timeout: inTime}, false)
	must(t, err)
	a := &app{getenv: os.Getenv, out: io.Discard, database: lossyDatabase{db}}
	t.Cleanup(a.close)
	root := a.root()
	root.SetArgs(strings.Fields("outbox retry 1 --execute --by anna --reason now --database " + c.env["EPOCHFENCE_DATABASE"]))
	err = root.ExecuteContext(t.Context())
	_, command, told := strings.Cut(fmt.Sprint(err), "find out with: epochfence ")
	if exitCode(err) != exitDoubt || !told {
		t.Fatalf("an act whose outcome is not known returned %v", err)
	}
	c.does(exitOK, strings.Fields(command)...)
}

func TestAnActInDoubtSaysHowToFindOut(t *testing.T) {
	l := atWork(t, inSQLite(t, none))
	l.through()
	l.stop()
	p, err := operate.Planner{}.Plan(t.Context(), l.at(1).Fence, operate.Request{Kind: operate.ActEvict, By: "anna", Reason: "for the test"})
	must(t, err)
	err = carryOut(t.Context(), lossy{l.op}, []operate.Plan{p}, []actView{{partitionView: partitionView{Name: "billing/orders/1"}}})
	if exitCode(err) != exitDoubt || !strings.Contains(err.Error(), "find out with: epochfence history billing/orders/1 --claim "+p.Act.Claim.String()) {
		t.Errorf("an act whose outcome is not known returned %v", err)
	}
}

// A password is in no output, whatever fails.
func TestNoPasswordIsPrinted(t *testing.T) {
	ports, err := freeport.Take(1)
	must(t, err)
	at := ports[0]
	for _, url := range []string{
		fmt.Sprintf("postgres://app:s3cret@127.0.0.1:%d/x", at),
		fmt.Sprintf("postgres://app:s3cret@127.0.0.1:%d/x?sslmode=nonsense", at),
		"postgres://app:s3cret@127.0.0.1:port/x",
		"postgres://app:s3cret@[nonsense/x",
		"mysql://app:s3cret@127.0.0.1/x",
	} {
		for _, command := range []string{"list", "doctor", "migrate list", "drill --execute"} {
			a := (&cli{t, map[string]string{"EPOCHFENCE_DATABASE": url}}).run(append(strings.Fields(command), "--timeout", "10ms")...)
			if a.code == exitOK || strings.Contains(a.out+a.errs, "s3cret") {
				t.Errorf("%s, %s: %+v", url, command, a)
			}
		}
	}
	for _, url := range []string{
		"postgres://bob:p@ss:w/rd?#%zz@127.0.0.1:1/x", "postgres://bob:p@ss:w/rd@127.0.0.1:1/x", "postgres://bob:12?rd@127.0.0.1:1/x",
		"postgres://bob:p@ss:w#rd@127.0.0.1:1/x", "postgres://bob:p@ss:w:rd@127.0.0.1:1/x",
	} {
		a := (&cli{t, map[string]string{"EPOCHFENCE_DATABASE": url}}).run("list", "--timeout", "10ms")
		if said := a.out + a.errs; a.code == exitOK || strings.Contains(said, "ss:w") || strings.Contains(said, "rd@") || strings.Contains(said, "lookup ss") {
			t.Errorf("%s: %+v", url, a)
		}
	}
	for _, args := range []string{"list --store redis://bob:p@ss:1/rd@h", "check --group g --nats nats://bob:12,rd@h", "list --store nats://bob:p,rd@h/b", "check --group g --kafka bob:rd@h:9092"} {
		a := (&cli{t, nil}).run(strings.Fields(args)...)
		if said := a.out + a.errs; a.code == exitOK || strings.Contains(said, "ss:1") || strings.Contains(said, "rd@") || strings.Contains(said, "bob") {
			t.Errorf("%s: %+v", args, a)
		}
	}
	c := golden(t)
	for _, f := range []string{"table", "json"} {
		a := c.run("evict", "orders/0", "--nats", "nats://app:s3cret@127.0.0.1", "--format", f)
		if a.code != exitOK || strings.Contains(a.out+a.errs, "s3cret") {
			t.Errorf("%+v", a)
		}
	}
}

// JSON is one document on the output, also where a command is refused or finds trouble.
func TestJSONIsOneDocument(t *testing.T) {
	c := golden(t)
	for _, args := range []string{
		"check", "doctor", "list", "rewind orders/0 --to 1",
		"rewind orders/0 --to 1 --plan 000000000000 --execute --by anna --reason now",
		"evict orders/0 --execute --by anna --reason now",
	} {
		a := c.run(append(strings.Fields(args), "--format", "json")...)
		var v map[string]any
		if err := json.Unmarshal([]byte(a.out), &v); err != nil {
			t.Errorf("%s: %v\n%s", args, err, a.out)
		}
	}
}

func TestACommandThatDoesNotExistIsAnsweredInLines(t *testing.T) {
	a := (&cli{t, nil}).does(exitUsage, "lsit")
	if strings.Contains(a.errs, `\n`) || !strings.Contains(a.errs, "Did you mean this?\n  list\n") {
		t.Errorf("it says\n%s", a.errs)
	}
}

func TestWhatToDoIsPrintedOnceForAReason(t *testing.T) {
	c := golden(t)
	db, err := sql.Open("sqlite", c.env["EPOCHFENCE_DATABASE"])
	must(t, err)
	defer func() { _ = db.Close() }()
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	f, err := epoch.FenceOf(t.Context(), sink, partition(0))
	must(t, err)
	must(t, operate.RecordsIn[*sqlsink.Tx](sink).Record(t.Context(), []operate.Decision{{
		Kind: operate.DecidedHalt, Partition: f.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner, From: f.Next, To: f.Next, Reason: "message_failed: it is no order",
	}}))
	said := c.does(exitOK, "describe").out
	if n := strings.Count(said, "It worked when"); n != 1 || strings.Count(said, " has halted at ") != 2 {
		t.Errorf("what to do is said %d times:\n%s", n, said)
	}
	tells(t, said, "epochfence skip billing/orders/0 --through 3 ", "message_failed: what to do is above")
}
