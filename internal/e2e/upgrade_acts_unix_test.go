//go:build unix

package e2e_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file has what operators do during the play of an upgrade, with the command of either version, and
// what must be there at the end. The positions that operators have set are in the audit log: from it follows
// how often each message is applied.

// act is an operator action that the command has reported as done.
type act struct{ kind, by, reason string }

// decision is an operator action in the audit log.
type decision struct {
	Kind, By, Reason, IdempotencyKey string
	From, To                         int64
	Partition                        struct {
		Group  string
		Number int
	}
}

func (u *upgrade) partition(lane int) string {
	return fmt.Sprintf("%s/%s/%d", u.spec["Topic"], u.spec["Topic"], lane)
}

// epochfence runs the command of a build.
func (u *upgrade) epochfence(build string, args ...string) (out string, code int) {
	u.Helper()
	cmd := exec.CommandContext(u.Context(), u.commands[build], args...)
	env := []string{"EPOCHFENCE_NATS=" + u.spec["NATS"], "EPOCHFENCE_KAFKA=" + u.spec["Kafka"]}
	switch u.spec["Sink"] {
	case "postgres":
		env = append(env, "EPOCHFENCE_DATABASE="+u.spec["Database"])
	case "sqlite":
		env = append(env, "EPOCHFENCE_DATABASE=file:"+u.spec["Database"])
	default:
		env = append(env, "EPOCHFENCE_STORE="+u.spec["NATS"]+"/items")
	}
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		u.Fatalf("epochfence %s: %v", strings.Join(args, " "), err)
	}
	return said.String(), cmd.ProcessState.ExitCode()
}

// act has an operator act, until it is done. It returns false if a dead letter or an entry of the outbox is
// gone, or has changed.
func (u *upgrade) act(by, verb string, args ...string) bool {
	u.Helper()
	kinds := map[string]string{
		"deadletters replay": "replay-request", "deadletters discard": "discard", "outbox retry": "outbox-retry", "outbox discard": "outbox-discard",
	}
	a := act{cmp.Or(kinds[verb], verb), "anna-" + by, fmt.Sprintf("act %03d", len(u.acts))}
	args = append(append(strings.Fields(verb), args...), "--execute", "--by", a.by, "--reason", a.reason, "--format", "json")
	for limit := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
		out, code := u.epochfence(by, args...)
		switch {
		case code == 0 && strings.Contains(out, `"done": true`):
			u.acts = append(u.acts, a)
			return true
		case kinds[verb] != "" && (code == 0 || code == 4 || strings.Contains(out, "no such") || strings.Contains(out, "nothing to do")):
			return false
		case code == 4, verb == "run" && (code == 0 || strings.Contains(out, "the job is at work")):
		default:
			u.Fatalf("%s's epochfence %s ends with exit code %d:\n%s", by, strings.Join(args, " "), code, out)
		}
		if time.Now().After(limit) {
			u.Fatalf("%s's epochfence %s is still refused:\n%s", by, strings.Join(args, " "), out)
		}
	}
}

// migrate migrates the tables with today's command, which shows before what it will do.
func (u *upgrade) migrate() {
	u.Helper()
	if u.spec["Sink"] != "items" { // which have none
		plan, code := u.epochfence(today, "migrate", "up")
		none := strings.Contains(plan, "The tables are up to date.")
		if u.Logf("epochfence migrate up:\n%s", plan); code != 0 || !none && !strings.Contains(plan, "Processes that are alive") {
			u.Errorf("epochfence migrate up ends with exit code %d, or does not know who is alive", code)
		}
		if out, code := u.epochfence(today, "migrate", "up", "--execute"); code != 0 {
			u.Fatalf("epochfence migrate up --execute ends with exit code %d:\n%s", code, out)
		}
	}
	u.run(today, "migrate") // the receiver's
}

// operate has an operator with the command of one build act on partitions of processes of another.
func (u *upgrade) operate(by, on string) {
	u.Helper()
	began := len(u.acts)
	one := func() (lane int) {
		u.until("processes of "+on+" to own partitions", func(r *report) bool {
			theirs := r.owned(on, true)
			if len(theirs) > 0 {
				lane, _ = strconv.Atoi(theirs[u.random.IntN(len(theirs))])
			}
			return len(theirs) > 0
		})
		return lane
	}
	u.act(by, "evict", u.partition(one()))
	u.pause(by, one())
	u.rewind(by, one())
	u.skip(by, one())
	u.runJobs(by)
	r := u.report(u.reader)
	for i, l := range r.Letters[:min(6, len(r.Letters))] {
		if !l.Requested {
			u.act(by, map[bool]string{false: "deadletters replay", true: "deadletters discard"}[i%4 == 1], strconv.FormatInt(l.ID, 10))
		}
	}
	for i, l := range r.Deferred[max(0, len(r.Deferred)-2):] { // which are not due yet
		if u.act(by, []string{"deadletters replay", "deadletters discard"}[i], strconv.FormatInt(l.ID, 10)) {
			u.hurried++
		}
	}
	for _, e := range r.Entries[:min(3, len(r.Entries))] {
		u.act(by, "outbox retry", strconv.FormatInt(e.ID, 10))
	}
	u.discard(by, r)
	u.story("%s has acted %d times, on partitions of %s, jobs, dead letters and requests", by, len(u.acts)-began, on)
}

// pause pauses a partition until others have continued.
func (u *upgrade) pause(by string, lane int) {
	u.Helper()
	u.act(by, "pause", u.partition(lane))
	was := u.report(u.reader)
	now := u.until("the others to continue", func(r *report) bool {
		for other := range lanes {
			if other != lane && r.next(u, other) <= was.next(u, other) {
				return false
			}
		}
		return true
	})
	if now.next(u, lane) != was.next(u, lane) {
		u.Errorf("partition %d is paused, and goes from %d to %d", lane, was.next(u, lane), now.next(u, lane))
	}
	u.act(by, "resume", u.partition(lane))
}

// rewind has the last messages of a partition applied again. An item may be written before the position is:
// such messages would be applied again too, so there the partition is at rest.
func (u *upgrade) rewind(by string, lane int) {
	u.Helper()
	if u.spec["Sink"] == "items" {
		u.hold(lane)
		defer u.hold(-1)
		u.until("the partition to be at rest", func(r *report) bool { return r.next(u, lane) > u.last(lane) })
	}
	next := u.report(u.reader).next(u, lane)
	u.sending.Lock()
	all := u.sent[lane][:u.place(lane, next)]
	u.sending.Unlock()
	if stone := 1 + last(all, func(s sent) bool { return s.value == "stone" }); stone < len(all) {
		to := all[max(stone, len(all)-15)].offset
		u.act(by, "rewind", u.partition(lane), "--to", strconv.FormatInt(to, 10))
	}
}

// runJobs runs the jobs beside their ticks. A tick that has changed an item, and not yet the position, would
// change it again: see docs/stores.md. So on items the jobs are held meanwhile, until each owner has begun a
// transaction after the request: it finds then that its claim was replaced.
func (u *upgrade) runJobs(by string) {
	u.Helper()
	run := func() {
		for _, job := range jobs {
			u.act(by, "run", "jobs/"+job+"/0")
		}
	}
	if u.spec["Sink"] != "items" {
		run()
		return
	}
	if err := os.WriteFile(u.spec["Hold"], nil, 0o600); err != nil {
		u.Fatal(err)
	}
	held := func(job string, at int64) string { return fmt.Sprintf("%s-%s-%d", u.spec["Hold"], job, at) }
	began := func(job string, at int64) bool { _, err := os.Stat(held(job, at)); return err == nil }
	all := func(holds func(job string) bool) bool {
		return !slices.ContainsFunc(jobs, func(job string) bool { return !holds(job) })
	}
	rest := u.until("the jobs to be at rest", func(r *report) bool {
		return all(func(job string) bool { return began(job, r.nextOf(job)) })
	})
	run()
	for _, job := range jobs {
		if err := os.Remove(held(job, rest.nextOf(job))); err != nil {
			u.Fatal(err)
		}
	}
	u.until("the owners of the jobs to try again", func(r *report) bool {
		return all(func(job string) bool { at := rest.nextOf(job); return began(job, at) || r.nextOf(job) > at })
	})
	if err := os.Remove(u.spec["Hold"]); err != nil {
		u.Fatal(err)
	}
	u.until("the requested runs", func(r *report) bool {
		return all(func(job string) bool { return r.nextOf(job) > rest.nextOf(job) })
	})
}

var jobs = []string{"count", "steps"}

// skip sends a message on which the partition halts, and skips it.
func (u *upgrade) skip(by string, lane int) {
	u.Helper()
	before, at, err := u.put(lane, "stone")
	if err != nil {
		u.Fatal(err)
	}
	u.until("the partition to halt", func(r *report) bool { return r.next(u, lane) > before })
	u.act(by, "skip", u.partition(lane), "--through", strconv.FormatInt(at, 10))
}

// discard discards the requests that the receiver never applies.
func (u *upgrade) discard(by string, r *report) {
	u.Helper()
	for _, e := range r.Entries {
		if stuck(e.IdempotencyKey) {
			u.act(by, "outbox discard", strconv.FormatInt(e.ID, 10))
		}
	}
}

// stuck is the rule of the receiver in testdata/upgrade.
func stuck(key string) bool {
	_, offset, _ := strings.Cut(key, "-")
	n, err := strconv.Atoi(offset)
	return err == nil && n%500 == 75
}

func (u *upgrade) hold(lane int) {
	u.sending.Lock()
	defer u.sending.Unlock()
	u.held = lane
}

// last returns the last offset that was sent.
func (u *upgrade) last(lane int) int64 {
	u.sending.Lock()
	defer u.sending.Unlock()
	return u.sent[lane][len(u.sent[lane])-1].offset
}

// place returns how many messages of a lane are before an offset.
func (u *upgrade) place(lane int, offset int64) int {
	n, _ := slices.BinarySearchFunc(u.sent[lane], offset, func(s sent, at int64) int { return cmp.Compare(s.offset, at) })
	return n
}

func last[E any](all []E, holds func(E) bool) int {
	for i, e := range slices.Backward(all) {
		if holds(e) {
			return i
		}
	}
	return -1
}

// next returns the position of a lane.
func (r *report) next(u *upgrade, lane int) int64 {
	for _, f := range r.Fences {
		if f.Partition.Group == u.spec["Topic"] && f.Partition.Number == lane {
			return f.Next
		}
	}
	return -1
}

// nextOf returns the position of a job.
func (r *report) nextOf(job string) int64 {
	for _, f := range r.Fences {
		if f.Partition.Group == "jobs" && f.Partition.Topic == job {
			return f.Next
		}
	}
	return -1
}

// drain returns what there is once everything is applied and sent, and all processes have ended.
func (u *upgrade) drain() *report {
	u.Helper()
	u.settle()
	u.until("everything to be applied, replayed, run and sent", func(r *report) bool {
		u.discard(today, r)
		n := len(r.Entries) + len(r.Deferred)
		for _, l := range r.Letters {
			if l.Requested {
				n++
			}
		}
		for lane := range lanes {
			if r.next(u, lane) <= u.last(lane) {
				n++
			}
		}
		return n == 0 && requested(r.Notes["tick/count"])+requested(r.Notes["step/steps"])/3 == u.done("run")
	})
	for _, m := range append(u.workers[:], u.receiver) {
		u.end(m)
	}
	r := u.report(today)
	if was := u.report(yesterday); fmt.Sprint(was) != fmt.Sprint(r) {
		u.Errorf("yesterday's report is\n%v\nand today's\n%v", was, r)
	}
	return r
}

// requested counts the runs and steps that operators have requested.
func requested(notes []string) (n int) {
	for _, note := range notes {
		n += strings.Count(note, "!")
	}
	return n
}

// done counts the acts of a kind.
func (u *upgrade) done(kind string) (n int) {
	for _, a := range u.acts {
		if a.kind == kind {
			n++
		}
	}
	return n
}

func (u *upgrade) audit(r *report) {
	u.Helper()
	u.recorded(r)
	var poison, put, requests, answers []string
	for _, d := range r.Decisions {
		switch d.Kind {
		case "discard":
			put = append(put, fmt.Sprintf("%d-%d", d.Partition.Number, d.From))
		case "outbox-discard":
			answers = append(answers, d.IdempotencyKey)
		}
	}
	for _, l := range r.Letters {
		put = append(put, fmt.Sprintf("%d-%d", l.Message.Partition.Number, l.Message.Offset))
	}
	for lane := range lanes {
		var want []string
		request := func(offset int64) {
			if offset%5 == 0 {
				requests = append(requests, fmt.Sprintf("%d-%d", lane, offset))
			}
		}
		for _, at := range r.Notes[fmt.Sprint("replay/", lane)] {
			put = append(put, fmt.Sprintf("%d-%s", lane, at))
			offset, _ := strconv.ParseInt(at, 10, 64)
			request(offset)
		}
		for _, m := range u.applied(r, lane) {
			if m.value == "order" {
				want = append(want, strconv.FormatInt(m.offset, 10))
				request(m.offset)
			} else {
				poison = append(poison, fmt.Sprintf("%d-%d", lane, m.offset))
			}
		}
		u.same(fmt.Sprintf("messages of partition %d", lane), r.Notes[fmt.Sprint("message/", lane)], want)
		answers = append(answers, r.Notes[fmt.Sprint("answer/", lane)]...)
	}
	if u.deferring == 0 || u.hurried == 0 {
		u.Errorf("when processes were replaced, %d messages were deferred; operators have acted on %d", u.deferring, u.hurried)
	}
	u.same("dead letters, there, replayed or discarded", sorted(put), sorted(poison))
	u.same("requests that were answered or discarded", sorted(answers), sorted(requests))
	once := slices.DeleteFunc(slices.Compact(sorted(requests)), stuck) // a message that is applied again has the same key
	u.same("requests that the receiver has applied", sorted(r.Notes["request/all"]), once)
	u.jobs(r)
	counts := map[string]int{}
	for _, a := range u.acts {
		counts[a.kind]++
	}
	for _, kind := range []string{"evict", "pause", "resume", "rewind", "skip", "run", "replay-request", "discard", "outbox-retry", "outbox-discard"} {
		if counts[kind] == 0 {
			u.Errorf("there was no %s: %v", kind, counts)
		}
	}
	u.story("judged: %d messages, %d requests and %d dead letters, %d of them left; %d runs and %d steps of jobs; deferred messages waited %d times when a process was replaced; %d acts, of which %d on deferred messages: %v",
		len(u.sent[0])*lanes, len(requests), len(poison), len(r.Letters), len(r.Notes["tick/count"]), len(r.Notes["step/steps"]), u.deferring, len(u.acts), u.hurried, counts)
}

// recorded checks that each act is in the audit log once, under the name of its operator. An act that sets the
// position of a working owner may evict it before.
func (u *upgrade) recorded(r *report) {
	u.Helper()
	times := map[act]int{}
	for _, d := range r.Decisions {
		reason := d.Reason[max(0, len(d.Reason)-len("act 000")):] // that of a dead letter has more before
		times[act{d.Kind, d.By, reason}]++
	}
	for _, a := range u.acts {
		if n := times[a]; n != 1 {
			u.Errorf("%+v is %d times in the audit log", a, n)
		}
		delete(times, a)
		if a.kind == "rewind" || a.kind == "run" {
			delete(times, act{"evict", a.by, a.reason})
		}
	}
	if len(times) > 0 {
		u.Errorf("in the audit log are acts that nobody has done: %v", times)
	}
}

// applied returns the messages of a lane in the order in which they are applied, if the positions go as the
// audit log says: a rewind goes back, and a skip leaves out one message.
func (u *upgrade) applied(r *report, lane int) (all []sent) {
	u.Helper()
	at := 0
	for _, d := range slices.Backward(r.Decisions) {
		if d.Partition.Group != u.spec["Topic"] || d.Partition.Number != lane || d.Kind != "rewind" && d.Kind != "skip" {
			continue
		}
		from, to := u.place(lane, d.From), u.place(lane, d.To)
		if from < at || d.Kind == "rewind" && to > from || d.Kind == "skip" && (to != from+1 || u.sent[lane][from].value != "stone") {
			u.Fatalf("partition %d was at message %d of %d, and then: %+v", lane, at, len(u.sent[lane]), d)
		}
		all, at = append(all, u.sent[lane][at:from]...), to
	}
	return append(all, u.sent[lane][at:]...)
}

// jobs checks that each second has one run of each job. A run that an operator has requested takes the place
// of one.
func (u *upgrade) jobs(r *report) {
	u.Helper()
	plain := func(notes []string) (all []string) {
		for _, note := range notes {
			all = append(all, strings.TrimSuffix(note, "!"))
		}
		return all
	}
	ticks, steps := plain(r.Notes["tick/count"]), plain(r.Notes["step/steps"])
	var wantTicks, wantSteps []string
	first, _ := strconv.Atoi(ticks[0])
	for i := range ticks {
		wantTicks = append(wantTicks, strconv.Itoa(first+i))
	}
	first, _ = strconv.Atoi(strings.TrimSuffix(steps[0], "/0"))
	for i := range steps {
		wantSteps = append(wantSteps, fmt.Sprintf("%d/%d", first+i/3, i%3))
	}
	u.same("runs of a job", ticks, wantTicks)
	u.same("steps of a job", steps, wantSteps)
	runs, stepped := requested(r.Notes["tick/count"]), requested(r.Notes["step/steps"])
	if runs+stepped/3 != u.done("run") || runs != stepped/3 {
		u.Errorf("%d runs and %d steps were requested: want %d of two jobs", runs, stepped, u.done("run"))
	}
}

func sorted(all []string) []string { return slices.Sorted(slices.Values(all)) }

func (u *upgrade) same(what string, got, want []string) {
	u.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			near := func(all []string) []string { return all[min(max(0, i-2), len(all)):min(i+6, len(all))] }
			u.Errorf("%s: %d, want %d; near number %d they are %q, want %q", what, len(got), len(want), i, near(got), near(want))
			return
		}
	}
}
