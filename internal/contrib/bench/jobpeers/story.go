package main

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
)

// story is what happens to the pods.
type story struct {
	name   string
	freeze string
	long   time.Duration
	play   func(context.Context, *stage) (string, error)
}

// in is whether a story is played in a form.
func (s story) in(form string) bool {
	switch form {
	case plain:
		return s.freeze == inWork
	case checked:
		return s.freeze != ""
	}
	return true
}

const short = 1200 * time.Millisecond

var stories = []story{
	{name: "frozen in work", freeze: inWork, long: short, play: playFreeze},
	{name: "before COMMIT", freeze: beforeCommit, long: short, play: playFreeze},
	{name: "thawed early", freeze: beforeCommit, long: short, play: playThaw},
	{name: "all pods gone", long: short, play: playGone},
	{name: "overrun", long: 2*period + period/2, play: playOverrun},
}

// stage is where a story is played.
type stage struct {
	*show
	config
	db   *pgx.Conn
	pods []*child
}

func (s *servers) play(ctx context.Context, sh *show, verbose bool) (string, error) {
	c, end, err := s.stage(ctx, sh)
	if err != nil {
		return "", err
	}
	defer end()
	if sh.peer.setUp != nil {
		if err := sh.peer.setUp(ctx, c); err != nil {
			return "", err
		}
	}
	st := &stage{show: sh, config: c}
	if st.db, err = pgx.Connect(ctx, c.Database); err != nil {
		return "", err
	}
	defer func() { _ = st.db.Close(context.WithoutCancel(ctx)) }()
	defer func() {
		for _, p := range st.pods {
			p.kill()
			if verbose || err != nil {
				fmt.Fprintf(os.Stderr, "--- %s %s %s %d, pod %s:\n%s\n", sh.name, sh.form, sh.story.name, sh.trial+1, p.name, strings.Join(p.said.lines(), "\n"))
			}
		}
	}()
	if sh.peer.beside != nil {
		if _, err := st.start(ctx, "scheduler", true); err != nil {
			return "", err
		}
	}
	said, err := sh.story.play(ctx, st)
	return said, err
}

// playFreeze freezes one pod until another one has billed the customers, and thaws it.
func playFreeze(ctx context.Context, st *stage) (string, error) {
	return st.freezeUntil(ctx, `select count(distinct customer) = 20 from invoice`, time.Second)
}

// playThaw thaws it when another one is at work, and has read who is due.
func playThaw(ctx context.Context, st *stage) (string, error) {
	return st.freezeUntil(ctx, `select exists (select from run, frozen where run.pod <> frozen.pod and began > at)`, 300*time.Millisecond)
}

func (st *stage) freezeUntil(ctx context.Context, question string, longer time.Duration) (string, error) {
	pods := []*child{}
	for _, name := range []string{"a", "b"} {
		if st.peer.replaced && name == "b" {
			continue // when a is frozen
		}
		p, err := st.start(ctx, name, false)
		if err != nil {
			return "", err
		}
		pods = append(pods, p)
	}
	frozen, err := st.frozen(ctx, pods)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if st.peer.replaced {
		if _, err := st.start(ctx, "b", false); err != nil {
			return "", err
		}
	}
	taken := "taken over after %.0f s"
	err = st.until(ctx, 4*time.Minute, question)
	switch {
	case errors.Is(err, errNotYet):
		taken = "not taken over in %.0f s"
	case err != nil:
		return "", err
	}
	away := time.Since(began)
	pause(ctx, longer)
	frozen.said.clear()
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return "", err
	}
	how, err := frozen.returned(ctx)
	if err != nil {
		return "", err
	}
	pause(ctx, 3*period)
	var doubled, lost int
	err = st.db.QueryRow(ctx, `select count(*) filter (where n > 1), count(*) filter (where n = 0) from
		(select count(invoice.customer) as n from customer left join invoice on invoice.customer = id group by id) as c`).Scan(&doubled, &lost)
	if err != nil {
		return "", err
	}
	rows, err := st.db.Query(ctx, `select pod || ' in ' || tick from invoice group by pod, tick order by min(at)`)
	if err != nil {
		return "", err
	}
	by, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return fmt.Sprintf("%d of 20 invoices doubled, %d lost, written by %s; %s was frozen; "+taken+"; the frozen run %s; its process said: %s",
		doubled, lost, strings.Join(by, " and "), frozen.name, away.Seconds(), how, frozen.said.first()), err
}

// playGone kills all pods for five ticks, and counts the runs that begin when a pod is there again.
func playGone(ctx context.Context, st *stage) (string, error) {
	if _, err := st.start(ctx, "a", false); err != nil {
		return "", err
	}
	if err := st.until(ctx, 2*time.Minute, `select count(*) >= 2 from run where ended is not null`); err != nil {
		return "", err
	}
	for _, p := range st.pods {
		p.kill()
	}
	if _, err := st.db.Exec(ctx, `update run set ended = began where ended is null`); err != nil {
		return "", err
	}
	killed := time.Now()
	pause(ctx, 5*period+period/2)
	back := time.Now()
	if st.peer.beside != nil {
		if _, err := st.start(ctx, "scheduler", true); err != nil {
			return "", err
		}
	}
	if _, err := st.start(ctx, "b", false); err != nil {
		return "", err
	}
	if err := st.until(ctx, 3*time.Minute, `select count(*) > 0 from run where pod = 'b' and began < now() - interval '6 seconds'`); err != nil {
		return "", err
	}
	rows, err := st.db.Query(ctx, `select tick || ' at ' || to_char(began at time zone 'UTC', 'HH24:MI:SS.MS') from run where pod = 'b' order by id`)
	if err != nil {
		return "", err
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return fmt.Sprintf("away from %s to %s; then ran: %s", killed.UTC().Format(clock), back.UTC().Format(clock), strings.Join(runs, ", ")), err
}

// playOverrun lets the work take two and a half periods.
func playOverrun(ctx context.Context, st *stage) (string, error) {
	for _, name := range []string{"a", "b"} {
		if _, err := st.start(ctx, name, false); err != nil {
			return "", err
		}
	}
	if err := st.until(ctx, 2*time.Minute, `select count(*) > 0 from run`); err != nil {
		return "", err
	}
	pause(ctx, 8*period)
	var runs, most int
	err := st.db.QueryRow(ctx, `select count(*), max((select count(*) from run as o where o.began <= run.began and coalesce(o.ended, 'infinity') > run.began)) from run`).Scan(&runs, &most)
	return fmt.Sprintf("%d runs begun in the time of 9 ticks, at most %d at a time", runs, most), err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
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

// child is a pod, seen from the stage.
type child struct {
	name   string
	cmd    *exec.Cmd
	said   *tail
	events chan event
	exited chan struct{}
}

func (st *stage) start(ctx context.Context, name string, beside bool) (*child, error) {
	c := st.config
	c.Name, c.Beside = name, beside
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &child{name: name, said: &tail{}, events: make(chan event, 1000), exited: make(chan struct{})}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), podEnv+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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

// frozen returns the pod that has frozen itself.
func (st *stage) frozen(ctx context.Context, pods []*child) (*child, error) {
	if err := st.until(ctx, 2*time.Minute, `select count(*) > 0 from frozen`); err != nil {
		return nil, err
	}
	for range 100 {
		for _, p := range pods {
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
	return nil, errors.New("no pod is stopped")
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
