//go:build unix

package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
)

// This file plays an upgrade. One program (testdata/upgrade) is built against the commit in
// EPOCHFENCE_BEFORE and against this tree, as is the command epochfence. Processes of both work side by side
// while the tables are migrated and the deployment goes half way, back, and forward. Each process ends by
// SIGTERM, by SIGKILL, or after a freeze. upgrade_acts_unix_test.go has what operators do meanwhile with both
// commands, and judges everything by what is in the sink, in its audit log and at the receiver.

const (
	yesterday = "old"
	today     = "new"
	lanes     = 6 // partitions
)

// TestYesterdaysProcessesWorkBesideTodays: in a rolling deployment, stopped half way, and back, each message,
// replay, request and run of a job takes effect once, in order, and no process ends by itself. Each action of
// an operator, with the command of either version, is in the audit log once.
func TestYesterdaysProcessesWorkBesideTodays(t *testing.T) {
	before := os.Getenv("EPOCHFENCE_BEFORE")
	if before == "" {
		t.Skip("EPOCHFENCE_BEFORE names no commit: make long WHAT=upgrade")
	}
	builds, commands := map[string]string{yesterday: checkOut(t, before), today: "."}, map[string]string{}
	for name, tree := range builds {
		builds[name], commands[name] = filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), "epochfence")
		tags := "-tags="
		if errs, _ := os.ReadFile(filepath.Join(tree, "../../consumer/errors.go")); bytes.Contains(errs, []byte("func RetryAfter(")) {
			tags += "later"
		}
		command(t, tree, "GOWORK=off", "go", "build", "-ldflags=-w", tags, "-o", builds[name], "./testdata/upgrade")
		command(t, filepath.Join(tree, "../../cmd/epochfence"), "GOWORK=off", "go", "build", "-ldflags=-w", "-o", commands[name], ".")
	}
	var broker string
	if os.Getenv("EPOCHFENCE_KAFKA_LIBS") != "" {
		broker = kafkatest.Start(t, kafkatest.Config{}).Addr
	} else {
		broker = newCluster(t, kfake.GroupMinSessionTimeout(time.Second)).ListenAddrs()[0]
	}
	for _, sink := range []string{"postgres", "sqlite", "items"} {
		for _, source := range []string{"kafka", "nats"} {
			t.Run(source+" to "+sink, func(t *testing.T) {
				t.Parallel()
				newUpgrade(t, builds, commands, broker, source, sink).play()
			})
		}
	}
}

// checkOut returns the directory of this package in another commit, with today's program in it.
func checkOut(t *testing.T, commit string) string {
	t.Helper()
	if err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		t.Fatalf("commit %s, from which yesterday's program is built, is not in this clone (git cat-file: %v): run git fetch --unshallow, or set EPOCHFENCE_BEFORE to another one", commit, err)
	}
	dir, tar := t.TempDir(), filepath.Join(t.TempDir(), "tar")
	command(t, "../..", "", "git", "archive", "-o", tar, commit)
	command(t, dir, "", "tar", "-xf", tar)
	e2e := filepath.Join(dir, "internal/e2e")
	program := filepath.Join(e2e, "testdata/upgrade")
	if err := os.RemoveAll(program); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(program, os.DirFS("testdata/upgrade")); err != nil {
		t.Fatal(err)
	}
	return e2e
}

// command returns what a command prints.
func command(t *testing.T, dir, env, name string, args ...string) []byte {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env), &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &errs)
	}
	return out
}

// upgrade is one play.
type upgrade struct {
	*testing.T
	builds, commands map[string]string // the program and the command epochfence
	spec             map[string]string // of the program
	random           *rand.Rand
	began            time.Time

	workers  [3]*member
	receiver *member
	started  int
	reader   string // the build whose reports are read: today's cannot read tables before they are migrated

	send   func(lane int, value string) (offset int64, err error)
	settle func() // ends the load
	acts   []act

	sending sync.Mutex
	sent    [lanes][]sent
	held    int // the lane without load, or -1

	deferring, hurried int // messages that waited when a process was replaced, and those of them that operators have acted on
}

type sent struct {
	offset int64
	value  string // order, poison, later or stone
}

// member is a process.
type member struct {
	*servertest.Self
	name   string
	log    string
	ending bool
}

func newUpgrade(t *testing.T, builds, commands map[string]string, broker, source, sink string) *upgrade {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("EPOCHFENCE_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("EPOCHFENCE_SEED=%d", seed)
	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	nats, topic := natstest.Start(t), "orders-"+sink
	u := &upgrade{T: t, builds: builds, commands: commands, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), held: -1, reader: yesterday, spec: map[string]string{
		"Sink": sink, "NATS": nats.URL(), "Topic": topic,
		"Receiver": fmt.Sprintf("127.0.0.1:%d", ports[0]), "ReceiverFile": filepath.Join(t.TempDir(), "receiver.db"),
		"Hold": filepath.Join(t.TempDir(), "hold"),
	}}
	switch sink {
	case "postgres":
		u.spec["Database"] = pgtest.Start(t).URL
	case "sqlite":
		u.spec["Database"] = filepath.Join(t.TempDir(), "app.db")
	}
	if source == "kafka" {
		u.spec["Kafka"] = broker
		createTopic(t, []kgo.Opt{kgo.SeedBrokers(broker)}, topic, nil, lanes)
		client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		u.send = func(lane int, value string) (int64, error) {
			r, err := client.ProduceSync(context.Background(), &kgo.Record{Partition: int32(lane), Value: []byte(value)}).First()
			return r.Offset, err
		}
		return u
	}
	js := nats.JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}}); err != nil {
		t.Fatal(err)
	}
	u.send = func(lane int, value string) (int64, error) {
		ack, err := js.Publish(context.Background(), fmt.Sprintf("%s.%d", topic, lane), []byte(value))
		if err != nil {
			return 0, err
		}
		return int64(ack.Sequence), nil
	}
	return u
}

func (u *upgrade) play() {
	u.run(yesterday, "migrate")
	u.serve(yesterday)
	for place := range u.workers {
		u.workers[place] = u.start(yesterday, "work")
	}
	u.until("yesterday's processes to own all partitions", func(r *report) bool { return len(r.owned(yesterday, true)) == lanes })
	for lane := range lanes { // so that what is stored has an era
		u.act(yesterday, "rewind", u.partition(lane), "--to", "start")
	}
	u.load()
	u.progress("yesterday's processes work")
	u.migrate()
	u.reader = today
	u.progress("the tables are migrated under them")

	ways := func() []syscall.Signal {
		all := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGSTOP}
		u.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all
	}
	for place, how := range ways()[:2] {
		u.replace(place, today, how)
	}
	u.serve(today)
	u.replace(2, yesterday, syscall.SIGKILL)
	u.progress("it has stopped half way, with a process of yesterday that started on today's tables")
	u.operate(today, yesterday)
	u.operate(yesterday, today)
	u.progress("operators of each have acted on partitions of the other")
	for place, how := range ways()[:2] {
		u.replace(place, yesterday, how)
	}
	u.serve(yesterday)
	u.progress("it is back at yesterday")
	u.operate(yesterday, yesterday)
	for place, how := range ways() {
		u.replace(place, today, how)
	}
	u.operate(yesterday, today)
	u.serve(today)
	u.progress("it is at today")
	u.operate(today, today)
	u.audit(u.drain())
}

// start starts a process.
func (u *upgrade) start(build, verb string) *member {
	u.Helper()
	u.started++
	m := &member{name: fmt.Sprintf("%s-%02d", build, u.started)}
	cmd := exec.Command(u.builds[build], verb)
	cmd.Env = append(os.Environ(), u.env(m.name))
	subprocess.DieWithParent(cmd)
	log, err := os.Create(filepath.Join(u.TempDir(), m.name))
	if err != nil {
		u.Fatal(err)
	}
	cmd.Stderr, m.log = log, log.Name()
	m.Self = servertest.StartProgram(u.T, cmd)
	u.Cleanup(func() {
		_ = log.Close()
		if u.Failed() {
			u.Logf("%s, %s, said last:\n%s", m.name, verb, m.said())
		}
	})
	return m
}

func (m *member) said() string {
	b, _ := os.ReadFile(m.log)
	return string(b[max(0, len(b)-4000):])
}

func (u *upgrade) env(name string) string {
	spec := maps.Clone(u.spec)
	spec["Name"] = name
	b, err := json.Marshal(spec)
	if err != nil {
		u.Fatal(err)
	}
	return "UPGRADE=" + string(b)
}

// run returns what a program prints.
func (u *upgrade) run(build string, args ...string) []byte {
	u.Helper()
	return command(u.T, ".", u.env("operator"), u.builds[build], args...)
}

// serve kills the receiver, and starts one of a build.
func (u *upgrade) serve(build string) {
	u.Helper()
	if u.receiver != nil {
		u.receiver.Kill()
	}
	u.receiver = u.start(build, "receive")
}

// end ends a process, which must do so without an error.
func (u *upgrade) end(m *member) {
	u.Helper()
	m.ending = true
	m.Signal(syscall.SIGTERM)
	select {
	case <-m.Ended:
	case <-time.After(patience):
		u.Fatalf("%s did not end within %v of SIGTERM", m.name, patience)
	}
	if m.Result != nil {
		u.Errorf("%s ended with an error after SIGTERM: %v\n%s", m.name, m.Result, m.said())
	}
}

// replace ends a process in one of three ways, and starts one of a build in its place. A process that is
// frozen owns nothing when it continues, and works again before it ends.
func (u *upgrade) replace(place int, build string, how syscall.Signal) {
	u.Helper()
	was := u.workers[place]
	u.deferring += len(u.report(u.reader).Deferred)
	switch how {
	case syscall.SIGTERM:
		u.end(was)
	case syscall.SIGKILL:
		was.Kill()
	case syscall.SIGSTOP:
		u.until(was.name+" to own partitions, and not SQLite's write lock", func(r *report) bool {
			was.Freeze()
			if len(r.owned(was.name, true)) > 0 && u.unlocked() {
				return true
			}
			was.Signal(syscall.SIGCONT)
			return false
		})
	}
	u.workers[place] = u.start(build, "work")
	if how == syscall.SIGSTOP {
		r := u.until("what "+was.name+" has to be taken over", func(r *report) bool { return len(r.owned(was.name, false)) == 0 })
		u.until("it to be continued", func(now *report) bool { return now.beyond(r, 5) })
		was.Signal(syscall.SIGCONT)
		u.until(was.name+" to own something again", func(r *report) bool { return len(r.owned(was.name, false)) > 0 })
		u.end(was)
	}
	u.story("%s: %v; %s is in its place", was.name, how, u.workers[place].name)
}

// unlocked reports whether nobody has SQLite's write lock: a process that is frozen with it blocks all others.
func (u *upgrade) unlocked() bool {
	if u.spec["Sink"] != "sqlite" {
		return true
	}
	db, err := sql.Open("sqlite", "file:"+u.spec["Database"]+"?_txlock=immediate&_pragma=busy_timeout(1000)")
	if err != nil {
		u.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(u.Context(), nil)
	return err == nil && tx.Rollback() == nil
}

// report is what the program reports.
type report struct {
	Notes  map[string][]string
	Fences []struct {
		Owner     string
		Next      int64
		Partition struct {
			Group, Topic string
			Number       int
		}
	}
	Letters []struct {
		ID        int64
		Requested bool
		Message   struct {
			Partition struct{ Number int }
			Offset    int64
		}
	}
	Deferred []struct{ ID int64 } // by a build that can defer
	Entries  []struct {
		ID             int64
		IdempotencyKey string
	}
	Decisions []decision // newest first
}

func (u *upgrade) report(by string) *report {
	u.Helper()
	r := new(report)
	if err := json.Unmarshal(u.run(by, "report"), r); err != nil {
		u.Fatal(err)
	}
	return r
}

// owned returns the partitions of processes with a name, those of messages alone or also jobs.
func (r *report) owned(name string, messages bool) (all []string) {
	for _, f := range r.Fences {
		if strings.HasPrefix(f.Owner, name) && (!messages || f.Partition.Group != "jobs") {
			all = append(all, strconv.Itoa(f.Partition.Number))
		}
	}
	return all
}

// beyond reports whether each partition has applied n more messages, and each job has run.
func (r *report) beyond(was *report, n int) bool {
	for lane := range lanes {
		if list := fmt.Sprint("message/", lane); len(r.Notes[list]) < len(was.Notes[list])+n {
			return false
		}
	}
	return len(r.Notes["tick/count"]) > len(was.Notes["tick/count"]) && len(r.Notes["step/steps"]) > len(was.Notes["step/steps"])
}

// until waits for a report, and fails if a process has ended by itself.
func (u *upgrade) until(what string, holds func(*report) bool) *report {
	u.Helper()
	for limit := time.Now().Add(2 * patience); ; <-time.After(300 * time.Millisecond) {
		for _, m := range append(u.workers[:], u.receiver) {
			select {
			case <-m.Ended:
				if !m.ending {
					u.Fatalf("%s ended by itself: %v\n%s", m.name, m.Result, m.said())
				}
			default:
			}
		}
		r := u.report(u.reader)
		if holds(r) {
			return r
		}
		if time.Now().After(limit) {
			u.Fatalf("waited in vain for %s: %d dead letters; entries %+v; fences %+v", what, len(r.Letters), r.Entries, r.Fences)
		}
	}
}

// progress waits until all partitions and jobs go on, and each process owns some.
func (u *upgrade) progress(story string) {
	u.Helper()
	was := u.report(u.reader)
	r := u.until("progress when "+story, func(r *report) bool {
		idle := func(m *member) bool { return len(r.owned(m.name, false)) == 0 }
		return r.beyond(was, 25) && !slices.ContainsFunc(u.workers[:], idle)
	})
	u.story("%s; old owns %d, new %d; %d dead letters and %d requests were under way", story, len(r.owned(yesterday, false)), len(r.owned(today, false)), len(was.Letters), len(was.Entries))
}

func (u *upgrade) story(format string, args ...any) {
	u.Helper()
	u.Logf("%s, %5.1f s: %s", filepath.Base(u.Name()), time.Since(u.began).Seconds(), fmt.Sprintf(format, args...))
}

// load sends a message to each partition now and then, until settle is called. One in twenty is poison, and one is to be
// handled later, which is poison for processes that cannot.
func (u *upgrade) load() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	u.settle = func() { cancel(); <-ended }
	u.Cleanup(u.settle)
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			for lane := range lanes {
				value := map[int]string{7: "poison", 13: "later"}[n%20]
				if _, _, err := u.put(lane, cmp.Or(value, "order")); err != nil {
					u.Errorf("send: %v", err)
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(60 * time.Millisecond):
			}
		}
	}()
}

// put sends a message, and returns its offset and that of the message before. It sends no order or poison to
// the lane that is held.
func (u *upgrade) put(lane int, value string) (before, at int64, err error) {
	u.sending.Lock()
	defer u.sending.Unlock()
	if lane == u.held && value != "stone" {
		return 0, 0, nil
	}
	at, err = u.send(lane, value)
	if all := u.sent[lane]; len(all) > 0 {
		before = all[len(all)-1].offset
	}
	u.sent[lane] = append(u.sent[lane], sent{at, value})
	return before, at, err
}
