package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

// kind says where a worker is frozen, and when it is thawed.
type kind struct {
	name   string
	freeze string
	early  bool // thawed when the other one is at work, before that has an effect
}

// The places where a worker freezes. written is after the effect's statements and before the last
// check, for peers that have one.
const (
	inWork       = "in its work"
	written      = "before its last check"
	beforeCommit = "before COMMIT"
)

var kinds = []kind{
	{name: "frozen in its work", freeze: inWork},
	{name: "thawed while the other works", freeze: written, early: true},
	{name: "frozen before COMMIT", freeze: beforeCommit},
}

// patience is how long a worker may take on a machine that is busy with other trials. asynq needs two
// minutes to find a dead one.
const patience = 6 * time.Minute

// stage is where a trial is played.
type stage struct {
	*row
	config
	javaPeer
	db   *pgx.Conn
	pods []*child
}

func (s *servers) play(ctx context.Context, r *row, k kind) (o outcome) {
	if r.play != nil {
		return r.play(s, ctx, k)
	}
	st, end, err := s.stage(ctx, r, k)
	if err != nil {
		return outcome{err: err}
	}
	defer end()
	defer func() {
		for _, p := range st.pods {
			p.kill()
			if *verbose || o.err != nil {
				fmt.Fprintf(os.Stderr, "--- %s, %s, worker %s:\n%s\n", r.id, k.name, p.name, strings.Join(p.said.lines(), "\n"))
			}
		}
	}()
	if r.setUp != nil {
		if err := r.setUp(ctx, st.config); err != nil {
			return outcome{err: err}
		}
	}
	if r.beside != nil {
		if _, err := st.start("beside", true); err != nil {
			return outcome{err: err}
		}
	}
	return st.freezeAndThaw(ctx, k)
}

// freezeAndThaw lets a worker freeze, waits for the other one, thaws the first one, and counts.
func (st *stage) freezeAndThaw(ctx context.Context, k kind) (o outcome) {
	_, err := st.start("a", false)
	// A second consumer would have the group rebalanced before the freeze, which doubles effects too.
	together := !st.replaced && !st.consumer
	if err == nil && together {
		_, err = st.start("b", false)
	}
	if err == nil {
		err = st.until(ctx, patience, `select count(*) > 0 from frozen`)
	}
	if err != nil {
		return outcome{err: err}
	}
	frozen, err := st.stopped(ctx)
	if err != nil {
		return outcome{err: err}
	}
	if !together {
		if _, err := st.start("b", false); err != nil {
			return outcome{err: err}
		}
	}
	var taken string
	if o.waited, taken, err = st.awaitOther(ctx, k); err != nil {
		return outcome{err: err}
	}
	frozen.said.clear()
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return outcome{err: err}
	}
	how, err := frozen.returned(ctx)
	if err != nil {
		return outcome{err: err}
	}
	if err := st.until(ctx, 3*time.Minute, `select count(distinct item) = 20 from effect`); err != nil && !errors.Is(err, errNotYet) {
		return outcome{err: err}
	}
	pause(ctx, 3*period)
	var by string
	if err := st.db.QueryRow(ctx, `select coalesce(string_agg(concat(pod, ' ', tick, ': ', n), ', '), 'nobody') from
		(select pod, tick, count(*) as n from effect group by pod, tick order by min(at) limit 5) as e`).Scan(&by); err != nil {
		return outcome{err: err}
	}
	o.said = fmt.Sprintf("%s; effects by %s; the frozen run of %s %s; its process said: %s", taken, by, frozen.name, how, frozen.said.first())
	return st.counted(ctx, o)
}

// awaitOther waits until the other worker is done, or for an early thaw is at work. It waits no longer
// if that one waits itself, for the frozen one's locks.
func (st *stage) awaitOther(ctx context.Context, k kind) (waited bool, said string, err error) {
	question, longer := `select count(distinct item) = 20 from effect`, time.Second
	if k.early {
		question, longer = `select exists (select from run, frozen where run.pod <> frozen.pod and began > at)`, 300*time.Millisecond
		if st.consumer {
			question = fmt.Sprintf(`select exists (select from run, frozen where run.pod <> frozen.pod and began > at and tick = '%d')`, hard)
		}
	}
	limit := patience
	if st.keeps {
		limit = 20 * time.Second
	}
	began := time.Now()
	err = st.until(ctx, limit, `select (`+question+`) or exists (select from pg_stat_activity where datname = current_database()
		and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '5 s')`)
	done := false
	if err == nil {
		err = st.db.QueryRow(ctx, question).Scan(&done)
	}
	if err != nil && (!st.keeps || !errors.Is(err, errNotYet)) {
		return false, "", err
	}
	said = fmt.Sprintf("taken over after %.0f s", time.Since(began).Seconds())
	switch {
	case err != nil:
		said = fmt.Sprintf("not taken over in %.0f s", time.Since(began).Seconds())
	case !done:
		said = fmt.Sprintf("waits for the frozen one's locks, after %.0f s", time.Since(began).Seconds())
	}
	pause(ctx, longer)
	return !done, said, nil
}

// counted counts the items that have two effects, and those that have none.
func (st *stage) counted(ctx context.Context, o outcome) outcome {
	if o.err == nil {
		o.err = st.db.QueryRow(ctx, `select count(*) filter (where n > 1), count(*) filter (where n = 0) from
			(select count(effect.item) as n from item left join effect on effect.item = item.id group by item.id) as c`).Scan(&o.doubled, &o.lost)
	}
	return o
}

var errNotYet = errors.New("it did not become true")

func (st *stage) until(ctx context.Context, limit time.Duration, question string) error {
	deadline := time.Now().Add(limit)
	for {
		var yes bool
		if err := st.db.QueryRow(ctx, question).Scan(&yes); err != nil || yes {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w within %v: %s", errNotYet, limit, question)
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// child is a worker, seen from the stage.
type child struct {
	name   string
	cmd    *exec.Cmd
	said   *tail
	events chan event
	exited chan struct{}
}

func (st *stage) start(name string, beside bool) (*child, error) {
	c := st.config
	c.Name, c.Beside = name, beside
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &child{name: name, said: &tail{}, events: make(chan event, 1000), exited: make(chan struct{})}
	if st.java {
		if p.cmd, err = st.javaCommand(c); err != nil {
			return nil, err
		}
	} else {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		p.cmd = exec.Command(self)
		p.cmd.Env = append(os.Environ(), podEnv+"="+string(text))
	}
	subprocess.DieWithParent(p.cmd)
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		_ = w.Close()
	}()
	go p.read(r)
	st.pods = append(st.pods, p)
	return p, nil
}

func (p *child) read(r io.Reader) {
	defer close(p.exited)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		line := lines.Text()
		mark, ok := strings.CutPrefix(line, eventMark)
		if !ok {
			_, _ = p.said.Write([]byte(line + "\n"))
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(mark), &e); err == nil {
			p.events <- e
		}
	}
}

func (p *child) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stopped returns the worker that has frozen itself.
func (st *stage) stopped(ctx context.Context) (*child, error) {
	for range 200 {
		for _, p := range st.pods {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
			if err != nil {
				return nil, err
			}
			if strings.Contains(string(stat), ") T ") {
				return p, nil
			}
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil, errors.New("no worker is stopped")
}

// returned says how the run that was frozen has ended.
func (p *child) returned(ctx context.Context) (string, error) {
	frozen := false
	limit := time.After(time.Minute)
	for {
		select {
		case e := <-p.events:
			frozen = frozen || e.Kind == "frozen"
			if frozen && e.Kind == "returned" {
				if e.Error == "" {
					return "returned nil", nil
				}
				return fmt.Sprintf("returned %q", e.Error), nil
			}
		case <-p.exited:
			return "ended with its process", nil
		case <-limit:
			return "did not return", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// tail keeps what a process writes, and starts anew after 1 MiB.
type tail struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > 1<<20 {
		t.text.Reset()
	}
	return t.text.Write(b)
}

func (t *tail) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Reset()
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Split(strings.TrimSpace(t.text.String()), "\n")
}

// first returns the first lines, shortened.
func (t *tail) first() string {
	lines := t.lines()
	if lines[0] == "" {
		return "nothing"
	}
	for i, l := range lines {
		if len(l) > 240 {
			lines[i] = l[:240] + "…"
		}
	}
	if n := len(lines); n > 3 {
		lines = append(lines[:3], fmt.Sprintf("and %d more lines", n-3))
	}
	return strings.Join(lines, " | ")
}
