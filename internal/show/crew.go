package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/servers/subprocess"
	"github.com/epochfence/epochfence/internal/waits"
)

// Crew is the worker processes of one column and their reports. It is safe for concurrent use.
type Crew struct {
	called    string // before the number of a worker
	role      role
	config    func(worker string) any                                                          // [Side.Config]
	elsewhere func(ctx context.Context, subject string, at Point, worker string) (bool, error) // [Side.Elsewhere]
	unlocked  func(ctx context.Context) bool                                                   // nobody holds the database's one write lock

	mu       sync.Mutex
	workers  []*process // in the order in which they were started
	at       Point      // where the present incident strikes
	struck   *process   // who has stopped there
	outcomes map[string]int
	failure  error // of a worker that ended by itself
}

func newCrew(called string, r role, config func(worker string) any) *Crew {
	return &Crew{called: called, role: r, config: config, outcomes: map[string]int{}}
}

// Start adds a worker. It lives until it is killed, [Crew.Stop], or the end of this process.
func (c *Crew) Start() (name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name = fmt.Sprintf("%s %d", c.called, len(c.workers)+1)
	p, err := startProcess(name, c.role, c.config(name), c.handle, c.ended)
	if err != nil {
		return name, fmt.Errorf("start %s: %w", name, err)
	}
	c.workers = append(c.workers, p)
	return name, nil
}

func (c *Crew) ended(p *process, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.stopping && c.failure == nil {
		c.failure = errors.Join(fmt.Errorf("%s ended, and nobody asked it to", p.name), err)
	}
	close(p.exited)
}

func (c *Crew) handle(p *process, r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.Point == "":
		c.outcomes[r.Text]++
		if r.Stopped {
			p.outcome = r.Text
		}
	case c.struck == nil && r.Point == c.at:
		c.struck, p.subject, p.outcome = p, r.Text, ""
	default: // another worker was faster
		p.order("")
	}
}

// order requires the crew's mutex. A worker that cannot read its orders has ended, which [Crew]
// notices.
func (p *process) order(stopAt Point) { _ = p.orders.Encode(stopAt) }

func (c *Crew) resume(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.order("")
}

var errTimeout = errors.New("took too long")

// Poll calls done until it returns true. It fails when ctx ends, when a worker has ended by itself, or
// after limit. The error then says what was awaited.
func (c *Crew) Poll(ctx context.Context, limit time.Duration, what string, done func(context.Context) (bool, error)) error {
	return c.poll(ctx, often, limit, what, done)
}

func (c *Crew) poll(ctx context.Context, every, limit time.Duration, what string, done func(context.Context) (bool, error)) error {
	for deadline := time.Now().Add(limit); waits.Sleep(ctx, every); {
		c.mu.Lock()
		failure := c.failure
		c.mu.Unlock()
		if failure != nil {
			return failure
		}
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w: more than %v", what, errTimeout, limit)
		}
	}
	return context.Cause(ctx)
}

// await polls what workers report. It calls done with the mutex held.
func (c *Crew) await(ctx context.Context, what string, done func() bool) error {
	return c.poll(ctx, 10*time.Millisecond, Patience, what, func(context.Context) (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return done(), nil
	})
}

// Outcomes counts the transactions or requests that were [Stale], [CutOff] or [Refused].
func (c *Crew) Outcomes(outcome string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcomes[outcome]
}

// logs returns the last lines that each worker wrote to standard error. All workers must have ended.
func (c *Crew) logs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, p := range c.workers {
		fmt.Fprintf(&b, "\n%s says\n  %s", p.name, strings.ReplaceAll(strings.TrimSpace(string(p.log)), "\n", "\n  "))
	}
	return b.String()
}

// Stop asks all workers to end, and kills those still running after grace. It returns once all have
// ended, and fails if one had to be killed after a grace, or had ended by itself.
func (c *Crew) Stop(grace time.Duration) error {
	c.mu.Lock()
	ps, failure := slices.Clone(c.workers), c.failure
	for _, p := range ps {
		p.stopping = true
	}
	c.mu.Unlock()
	for _, p := range ps { // some may have ended, which os.Process knows
		_ = subprocess.Thaw(p.cmd.Process)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, p := range ps {
		select {
		case <-p.exited:
			continue
		case <-ctx.Done():
		}
		if p.kill() == nil && grace > 0 {
			failure = fmt.Errorf("%s did not end within %v of being asked to, and was killed", p.name, grace)
		}
	}
	return failure
}

type process struct {
	name   string
	cmd    *exec.Cmd
	orders *json.Encoder // guarded by the crew's mutex
	log    tail          // complete once it has ended
	exited chan struct{} // closed after it has ended and its last report was handled

	// Guarded by the crew's mutex.
	stopping bool   // it has been told to end
	subject  string // of what it was stopped in
	outcome  string // of that; "" until then
}

// role is what a worker is told at its start, as JSON in its environment.
type role struct {
	Column   string
	Database string // of the column: a postgres:// URL or the path of a SQLite file
	Schema   string // in PostgreSQL
	HTTP     string // where the parent serves the status page, or empty
	Config   json.RawMessage
}

// startProcess starts a worker. It passes the reports to on, one at a time, and at last calls ended with the
// reason.
func startProcess(name string, r role, config any, on func(*process, report), ended func(*process, error)) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if r.Config, err = json.Marshal(config); err != nil {
		return nil, err
	}
	told, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(told))
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	subprocess.DieWithParent(cmd)
	cmd.Stderr = &p.log
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.orders = json.NewEncoder(in)
	go func() {
		var err error
		for reports := json.NewDecoder(out); err == nil; {
			var r report
			if err = reports.Decode(&r); err == nil {
				on(p, r)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it has ended, perhaps in the middle of a report
			err = nil
		} else {
			_ = cmd.Process.Kill()
			err = fmt.Errorf("it wrote a line that is not a report: %w", err)
		}
		ended(p, errors.Join(err, cmd.Wait()))
	}()
	return p, nil
}

// kill returns once the process has ended. It fails if it had ended before.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// tail keeps the end of what a process writes.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	all := append(*t, b...)
	*t = all[max(0, len(all)-2048):]
	return len(b), nil
}

// Incident is what happens to the worker that is first at a point of its next transactions or requests.
// Kill ends it (SIGKILL), and starts another worker. Otherwise it is frozen (SIGSTOP) until another worker
// has done what it had in hand, and continues (SIGCONT).
type Incident struct {
	Kill bool
	At   Point
}

// strike plays an incident, and returns a line that describes it. [Column.Strike] explains release.
func (c *Crew) strike(ctx context.Context, in Incident, release func()) (string, error) {
	p, err := c.stop(ctx, in.At, release)
	if err != nil {
		return "", err
	}
	if in.Kill {
		return c.killStopped(ctx, p, in.At, release)
	}
	return c.freezeStopped(ctx, p, in.At, release)
}

func (c *Crew) freezeStopped(ctx context.Context, p *process, at Point, release func()) (string, error) {
	if err := c.freezeUnlocked(ctx, p); err != nil {
		return "", err
	}
	release()
	began := time.Now()
	moving := c.awaitElsewhere(ctx, p, at)
	frozen := time.Since(began)
	if err := errors.Join(moving, subprocess.Thaw(p.cmd.Process)); err != nil {
		return "", err
	}
	c.resume(p)
	err := c.await(ctx, p.name+", which was thawed, commits or gives up", func() bool { return p.outcome != "" })
	return fmt.Sprintf("%s frozen %s at %s %s, then %s", p.name, seconds(frozen), p.subject, at, p.outcome), err
}

func (c *Crew) killStopped(ctx context.Context, p *process, at Point, release func()) (string, error) {
	c.mu.Lock()
	p.stopping = true
	c.mu.Unlock()
	_ = p.kill()
	release()
	began := time.Now()
	next, err := c.Start()
	if err != nil {
		return "", err
	}
	err = c.awaitElsewhere(ctx, p, at)
	return fmt.Sprintf("%s killed at %s %s, taken over in %s; %s joined", p.name, p.subject, at, seconds(time.Since(began)), next), err
}

// stop orders all workers to stop at a point, calls release, and returns the worker that stopped there
// first. [Crew] lets the others continue.
func (c *Crew) stop(ctx context.Context, at Point, release func()) (*process, error) {
	for once := sync.OnceFunc(release); ; {
		c.mu.Lock()
		c.at, c.struck = at, nil
		for _, p := range c.workers {
			p.order(at)
		}
		c.mu.Unlock()
		once()
		if err := c.await(ctx, "a worker gets a message to be stopped at", func() bool { return c.struck != nil }); err != nil {
			return nil, err
		}
		p := c.struck
		done, err := c.elsewhere(ctx, p.subject, at, "")
		if !done || err != nil || at.applied() {
			return p, err
		}
		c.resume(p) // it repeats what is done, which nobody would take over
	}
}

// freezeUnlocked freezes p at a moment at which it does not hold SQLite's one write lock: with that
// it would block all others.
func (c *Crew) freezeUnlocked(ctx context.Context, p *process) error {
	for {
		if err := subprocess.Freeze(p.cmd.Process); err != nil {
			return err
		}
		if c.unlocked(ctx) {
			return nil
		}
		if err := subprocess.Thaw(p.cmd.Process); err != nil {
			return err
		}
		if !waits.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// takeover is longer than a takeover takes.
const takeover = 12 * time.Second

// awaitElsewhere waits until another worker has done what p had in hand, or what follows it. It waits
// no longer than a takeover takes where locks of p may block the other worker, and where p has done
// it, so that perhaps nobody has to.
func (c *Crew) awaitElsewhere(ctx context.Context, p *process, at Point) error {
	limit, not := Patience, ""
	switch {
	case at == AfterWrites:
		limit = takeover
	case at.applied():
		limit, not = takeover, p.name
	}
	what := fmt.Sprintf("another worker goes on at %s, where %s was", p.subject, p.name)
	err := c.Poll(ctx, limit, what, func(ctx context.Context) (bool, error) { return c.elsewhere(ctx, p.subject, at, not) })
	if errors.Is(err, errTimeout) && limit == takeover {
		return nil
	}
	return err
}
