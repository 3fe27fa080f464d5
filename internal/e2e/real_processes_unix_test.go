//go:build unix

package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// Three worker processes share four partitions and one SQLite file. One is
// stopped (SIGSTOP) in the middle of a message until another has its partition
// and has applied everything; then it continues (SIGCONT) with the message, which
// comes to nothing: the claim is gone, whether it learns that from its own clock
// or from the fence. Then one is killed (SIGKILL), the broker is killed and comes
// back, a fourth process joins, and one is told to end (SIGTERM), with messages
// coming in all the while. Every message is applied once, in order, under epochs
// that never go back.
func TestRealProcessesFrozenAndKilled(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	led := newLedger(t, b.Addr, 4)
	a, c, d := led.startProcess("a"), led.startProcess("c"), led.startProcess("d")
	led.round(25)
	led.awaitApplied()

	led.send(0, marker)
	frozen, others := led.firstAt(marker+" 0", a, c, d)
	frozen.signal(syscall.SIGSTOP)
	for _, o := range others {
		o.goOn()
	}
	led.round(25)
	led.awaitApplied()
	frozen.signal(syscall.SIGCONT)
	frozen.goOn()

	led.round(25)
	others[0].signal(syscall.SIGKILL)
	led.round(25)
	b.Kill()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := led.startProcess("late")
	led.round(25)
	led.awaitApplied()
	others[1].end()
	led.round(25)
	led.awaitApplied()
	frozen.end()
	late.end()
	led.wantExactlyOnce()
}

// ledger is the database that the worker processes share, and the topic that
// they apply to it.
type ledger struct {
	*testing.T
	file         string
	db           *sql.DB
	sink         *sqlsink.Sink
	addr         string
	topic, group string
	client       *kgo.Client
	sent         map[int32][]string
}

func newLedger(t *testing.T, addr string, partitions int32) *ledger {
	t.Helper()
	l := &ledger{
		T: t, file: "file:" + filepath.Join(t.TempDir(), "ledger.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(5000)",
		addr: addr, topic: topic, group: group, sent: map[int32][]string{},
	}
	createTopic(t, []kgo.Opt{kgo.SeedBrokers(addr)}, l.topic, nil, partitions)
	var err error
	if l.client, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Close)
	if l.db, err = sql.Open("sqlite", l.file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.db.Close() })
	if err := sqlsink.Migrate(t.Context(), l.db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	_, err = l.db.ExecContext(t.Context(), `CREATE TABLE effects (
		id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, value TEXT, epoch INTEGER, worker TEXT)`)
	if err != nil {
		t.Fatal(err)
	}
	if l.sink, err = sqlsink.Open(t.Context(), l.db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	return l
}

// round sends n messages to each partition: 3/0, 3/1, … to partition 3.
func (l *ledger) round(n int) {
	l.Helper()
	for p := range int32(4) {
		for range n {
			l.send(p, fmt.Sprintf("%d/%d", p, len(l.sent[p])))
		}
	}
}

// send produces one message, in a batch of its own.
func (l *ledger) send(p int32, value string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), patience)
	defer cancel()
	if err := l.client.ProduceSync(ctx, &kgo.Record{Topic: l.topic, Partition: p, Value: []byte(value)}).FirstErr(); err != nil {
		l.Fatalf("produce %s: %v", value, err)
	}
	l.sent[p] = append(l.sent[p], value)
}

// until asks again and again, until holds is true.
func (l *ledger) until(what string, holds func() bool) {
	l.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			l.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// awaitApplied looks at the fences: what is below them is applied.
func (l *ledger) awaitApplied() {
	l.Helper()
	l.until("every message to be applied", func() bool {
		for p, sent := range l.sent {
			f, err := epoch.FenceOf(l.Context(), l.sink, epoch.Partition{Group: l.group, Topic: l.topic, Number: p})
			if err != nil || f.Next < epoch.Offset(len(sent)) {
				return false
			}
		}
		return true
	})
}

// owns returns whether a fence has a claim of p.
func (l *ledger) owns(p *process) bool {
	for n := range int32(4) {
		f, err := epoch.FenceOf(l.Context(), l.sink, epoch.Partition{Group: l.group, Topic: l.topic, Number: n})
		if err == nil && strings.HasPrefix(f.Owner, p.name+"@") {
			return true
		}
	}
	return false
}

func (l *ledger) wantExactlyOnce() {
	l.Helper()
	rows, err := l.db.QueryContext(l.Context(), `SELECT number, value, epoch FROM effects ORDER BY id`)
	if err != nil {
		l.Fatal(err)
	}
	defer rows.Close()
	applied, newest := map[int32][]string{}, map[int32]epoch.Epoch{}
	for rows.Next() {
		var p int32
		var value string
		var e epoch.Epoch
		if err := rows.Scan(&p, &value, &e); err != nil {
			l.Fatal(err)
		}
		applied[p] = append(applied[p], value)
		if e < newest[p] {
			l.Errorf("partition %d: %s was applied under epoch %d, after epoch %d", p, value, e, newest[p])
		}
		newest[p] = e
	}
	if err := rows.Err(); err != nil {
		l.Fatal(err)
	}
	for p, sent := range l.sent {
		if !slices.Equal(applied[p], sent) {
			l.Errorf("partition %d: applied %v, want %v", p, applied[p], sent)
		}
	}
}

// process is a worker process.
type process struct {
	l      *ledger
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	done   chan struct{}
	err    error // how it ended, once done is closed

	mu    sync.Mutex
	lines []string
}

func (l *ledger) startProcess(name string) *process { return l.start(processSpec{Name: name}) }

// startHanging starts a process that hangs on each trap.
func (l *ledger) startHanging(name string) *process {
	l.Helper()
	return l.start(processSpec{Name: name, Hangs: true})
}

// start returns when the process is ready for a signal.
func (l *ledger) start(spec processSpec) *process {
	l.Helper()
	spec.Addr, spec.Group, spec.Topic, spec.Database = l.addr, l.group, l.topic, l.file
	spec.Effect = `INSERT INTO effects (number, value, epoch, worker) VALUES (?, CAST(? AS TEXT), ?, ?)`
	p := &process{l: l, name: spec.Name, cmd: workerCommand(l, processEnv, spec), done: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		l.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		l.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		l.Fatal(err)
	}
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
	}()
	l.Cleanup(func() {
		if l.Failed() { // its goroutines say what it waits for
			_ = p.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case <-p.done:
			case <-time.After(5 * time.Second):
			}
		}
		_ = p.cmd.Process.Kill() // fails only if it is gone already
		<-p.done
		if l.Failed() {
			l.Logf("process %s logged\n%s", p.name, p.stderr.String())
		}
	})
	l.until(p.name+" to be ready", func() bool { return p.said("ready") })
	return p
}

func (p *process) signal(s os.Signal) {
	p.l.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.l.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// goOn lets the process continue from the marker, now or when it gets there.
func (p *process) goOn() {
	p.l.Helper()
	if _, err := io.WriteString(p.stdin, "continue\n"); err != nil {
		p.l.Fatal(err)
	}
}

func (p *process) said(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.lines, line)
}

func (p *process) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// TestRealProcessesOneOfWhichHangs: the handler of one process hangs on a message. Another process
// gets its partition while it hangs, and what it tries to write later is refused. Told to end, it
// exits with an error that says where it hangs.
func TestRealProcessesOneOfWhichHangs(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{})
	led := newLedger(t, b.Addr, 4)
	hangs := led.startHanging("hangs")
	led.round(3)
	led.send(1, trap)
	led.round(7)
	led.until("the process to hang", func() bool { return hangs.said("hangs") })
	other := led.startProcess("other")
	led.awaitApplied()
	led.round(10)
	led.awaitApplied()
	hangs.goOn()
	led.round(10)
	led.awaitApplied()
	hangs.end()

	again := led.startHanging("hangs again")
	led.until("it to hang", func() bool {
		if led.owns(again) { // and it may lose what it owns before it gets there
			for p := range int32(4) {
				led.send(p, trap) // its own are those that it hangs on
			}
		}
		return again.said("hangs")
	})
	led.round(5)
	led.awaitApplied() // by the other process, as the one that hangs gives up what it has
	again.signal(syscall.SIGTERM)
	select {
	case <-again.done:
	case <-time.After(patience):
		t.Fatalf("a process that hangs did not end within %v of SIGTERM", patience)
	}
	if out := again.stderr.String(); again.err == nil || !strings.Contains(out, "the handler hangs on the message at offset") || !strings.Contains(out, "process_test.go") {
		t.Errorf("it ended with %v, and wrote\n%s", again.err, out)
	}
	other.end()
	led.wantExactlyOnce()
}

// firstAt waits until one of ps has said line, and returns it and the others.
func (l *ledger) firstAt(line string, ps ...*process) (*process, []*process) {
	l.Helper()
	at := -1
	l.until("one of them to say "+line, func() bool {
		at = slices.IndexFunc(ps, func(p *process) bool { return p.said(line) })
		return at >= 0
	})
	return ps[at], slices.Delete(slices.Clone(ps), at, at+1)
}

// end tells the process to end, and expects it to do so in peace.
func (p *process) end() {
	p.l.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			p.l.Errorf("%s ended with %v, want status 0 after SIGTERM", p.name, p.err)
		}
	case <-time.After(patience):
		p.l.Fatalf("%s did not end in %v after SIGTERM", p.name, patience)
	}
}
