package statusz_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/remedies"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestThePageShowsPartitionsOfThisProcessAndOfOthers(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	r.claims(orders(1), "elsewhere")
	r.stats.Observe(consumer.Advanced{Partition: orders(0), Epoch: 1, From: 0, To: 12, Messages: 12, Lag: 1234})
	_, page := get(r.page(nil), "")
	wants(t, page, "Well. Nothing has halted.", "Member of the group yes", "Partitions held here 1", "1,234",
		"billing/orders/0 claimed here (this process)", "billing/orders/1 claimed elsewhere", "2 owners",
		"first claim billing/orders/1 1 by elsewhere, begins at 0")
	if !regexp.MustCompile(`Read at <time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC</time>`).MatchString(page) {
		t.Error("the page does not say when it was read")
	}
}

func TestARedirectRowSaysWhichDatabaseHasThePartition(t *testing.T) {
	r := newRig(t)
	away := epoch.Origin{Partition: orders(7), Log: operate.RedirectLog + "1", Source: "shards"}
	if err := r.sink.Seed(t.Context(), []epoch.Start{{Origin: away}}); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "billing/orders/7 in another database shard 1")
}

// job seeds a job at a position, and claims it.
func (r *rig) job(next epoch.Offset) epoch.Fence {
	r.Helper()
	job := epoch.Origin{Partition: epoch.Partition{Group: "reports", Topic: "nightly"}, Log: operate.JobLog, Source: lease.FenceLog}
	at := epoch.Position{Offset: next}
	err := r.sink.Seed(r.Context(), []epoch.Start{{Origin: job, Next: at, Earliest: at}})
	var f epoch.Fence
	if err == nil {
		f, err = r.sink.Claim(r.Context(), epoch.Fence{Origin: job, Next: at.Offset}, epoch.NewClaim(epoch.Lease{Origin: job, Generation: 3, Owner: "pod-1"}))
	}
	if err != nil {
		r.Fatal(err)
	}
	return f
}

// The position of a job is a time, and a group of jobs without a process is dead.
func TestAJobIsShownByItsTime(t *testing.T) {
	r := newRig(t)
	f := r.job(1_798_770_600_000_003)
	_, page := get(r.page(nil), "")
	wants(t, page, "2027-01-01T02:30:00Z, step 3", "No process of group reports is alive")

	run := operate.NewAct(operate.ActRun, f, "anna", "the auditors came early")
	run.To = &epoch.Position{Offset: 1_798_770_601_000_000, Mark: 1}
	if _, err := r.op.Act(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	_, page = get(r.page(nil), "")
	wants(t, page, "run reports/nightly/0 4 by anna: from 2027-01-01T02:30:00Z, step 3 to 2027-01-01T02:30:01Z;", "the auditors came early")
}

// Between two holders nobody has a lock, and no consumer of its group need be alive.
func TestALockIsWellThoughNobodyHasIt(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	lock := epoch.Origin{Partition: epoch.Partition{Group: "reports", Topic: "nightly"}, Log: lease.FenceLog, Source: lease.FenceLog}
	err := r.sink.Seed(t.Context(), []epoch.Start{{Origin: lock}})
	if err == nil {
		_, err = r.sink.Claim(t.Context(), epoch.Fence{Origin: lock}, epoch.NewClaim(epoch.Lease{Origin: lock, Generation: 3, Owner: "pod-1"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "Well. Nothing has halted.", "reports/nightly/0 lock pod-1")
}

func TestWhoHasAPartitionAndHasNotClaimedItIsShownUnlessItIsPaused(t *testing.T) {
	r := newRig(t)
	r.claims(orders(0), "one")
	r.claims(orders(1), "one")
	paused := r.claims(orders(2), "one")
	act := operate.NewAct(operate.ActPause, paused, "anna", "wait")
	if _, err := r.op.Act(t.Context(), act); err != nil {
		t.Fatal(err)
	}
	logs := map[epoch.Partition]operate.Extent{orders(0): {Unfenced: "member old-1 at /10.0.0.7"}, orders(1): {}, orders(2): {Unfenced: "member one-2"}}
	_, page := get(r.page(func(o *statusz.Options) {
		o.Logs = func(context.Context, []epoch.Fence) (map[epoch.Partition]operate.Extent, error) { return logs, nil }
	}), "")
	wants(t, page, "billing/orders/0 not fenced member old-1 at /10.0.0.7 has it, and has not claimed it", "billing/orders/1 caught up", "billing/orders/2 paused")
}

func TestALagThatIsNotKnownIsNotZero(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	r.holds(orders(1))
	_, page := get(r.page(nil), "")
	wants(t, page, "To apply here – messages, as of the last read; without 2 partitions whose lag is not known")
	r.stats.Observe(consumer.Advanced{Partition: orders(0), Epoch: 1, From: 0, To: 12, Messages: 12, Lag: 1234})
	known := map[epoch.Partition]operate.Extent{orders(1): {Lag: 77}}
	_, page = get(r.page(func(o *statusz.Options) {
		o.Logs = func(context.Context, []epoch.Fence) (map[epoch.Partition]operate.Extent, error) { return known, nil }
	}), "")
	wants(t, page, "To apply here 1,234 messages, as of the last read; without 1 partition whose lag is not known",
		"To apply in the group 77 messages; without 1 partition whose lag is not known")
}

func TestATakeoverAndOperatorActionsAreTold(t *testing.T) {
	r := newRig(t)
	r.claims(orders(0), "one")
	f := r.claims(orders(0), "two")
	act := operate.NewAct(operate.ActRewind, f, "anna", "the prices were wrong")
	act.To = &epoch.Position{Offset: 7, Mark: epoch.NoMark}
	if _, err := r.op.Act(t.Context(), act); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "takeover billing/orders/0 2 by two, from one, continues at 0",
		"rewind billing/orders/0 3 by anna: from 0 to 7; the prices were wrong",
		"waiting for an owner", "no process has claimed it since anna acted")
	r.claims(orders(0), "two")
	bubble.Test(t, func(t *testing.T) { // another reading
		_, page := get(r.page(nil), "")
		wants(t, page, "by two, after what anna did, continues at 7")
	})
}

func TestAHaltComesWithItsRemedyAndManyWithOne(t *testing.T) {
	for _, why := range consumer.Reasons() {
		if why == consumer.ReasonPaused { // is no halt
			continue
		}
		r := newRig(t)
		for n := range int32(52) {
			r.says(fence(orders(n)))
			r.halts(orders(n), why, errors.New("this is why"))
		}
		_, page := get(r.page(nil), "")
		remedy, ok := remedies.Of(why)
		if !ok {
			t.Errorf("%v has no remedy", why)
			continue
		}
		plain := strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&amp;", "&").Replace(text(page))
		if strings.Count(plain, remedy.Means) != 1 || strings.Count(plain, remedy.Do) != 1 {
			t.Errorf("%v: what it means and what to do are there %d and %d times", why, strings.Count(plain, remedy.Means), strings.Count(plain, remedy.Do))
		}
		wants(t, page, "52 partitions have halted", "and 2 more", "this is why", "next attempt in")
		if why.NeedsOperator() != strings.Contains(plain, "needs an operator") {
			t.Errorf("%v: an operator is needed: %v", why, why.NeedsOperator())
		}
	}
}

func TestAHaltOfAnotherProcessIsKnownFromTheDecisionLogUntilThePartitionMoves(t *testing.T) {
	r := newRig(t)
	f := r.claims(orders(0), "elsewhere")
	halt := operate.Decision{Kind: operate.DecidedHalt, Partition: orders(0), Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner, From: 0, To: 0, Reason: "no such table"}
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Record(t.Context(), []operate.Decision{halt}); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "billing/orders/0 halted no such table elsewhere", "1 partition has halted")
	r.claims(orders(0), "another")
	_, page = get(r.page(nil), "")
	wants(t, page, "billing/orders/0 claimed another")
}

func TestACallThatHangsIsShownWithItsWholeStack(t *testing.T) {
	r := newRig(t)
	r.stats.Observe(consumer.Joined{})
	stack := strings.Repeat("net/http.(*persistConn).roundTrip(0xc000)\n\t/go/src/net/http/transport.go:2700\n", 20) + "main.charge(0xc001)\n\t/app/charge.go:17"
	r.stats.Observe(consumer.Overdue{Partition: orders(0), Epoch: 7, Function: consumer.FunctionHandler, Offset: 41, Since: time.Now(), Stack: stack})
	_, page := get(r.page(nil), "")
	wants(t, page, "1 call hangs; restart the process", "the handler hangs on the message at offset 41, epoch 7", "main.charge(0xc001) /app/charge.go:17")
}

func TestSuspicionsAreInTheTimeline(t *testing.T) {
	r := newRig(t)
	dead := consumer.Suspected{Name: "b-17", Host: "bob", Member: "b#1", Silent: 1600 * time.Millisecond}
	r.stats.Observe(dead)
	r.stats.Observe(consumer.SuspicionWrong{Suspected: dead, Slept: 4 * time.Second, Patience: 3 * time.Second})
	_, page := get(r.page(nil), "")
	wants(t, page, "suspected b-17 on bob (member b#1): silent for 1.6s", "suspicion was wrong b-17 on bob lives, after 4s without a sign; its patience is 3s now")
}

func TestAHangOfAnotherProcessIsToldWithItsMessage(t *testing.T) {
	r := newRig(t)
	f := r.claims(orders(0), "elsewhere")
	hang := operate.Decision{Kind: operate.DecidedHang, Partition: orders(0), Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner, From: 7, To: 8, Reason: "it waits for the bank"}
	batch := hang
	batch.From, batch.To = 5, 9
	background := hang
	background.From, background.To = -1, -1
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Record(t.Context(), []operate.Decision{hang, batch, background}); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "elsewhere, at 7: it waits for the bank", "elsewhere, in [5, 9): it waits", "elsewhere: it waits for the bank")
}

func TestAPausedPartitionIsNotHalted(t *testing.T) {
	r := newRig(t)
	f := r.holds(orders(0))
	if _, err := r.op.Act(t.Context(), operate.NewAct(operate.ActPause, f, "anna", "the warehouse is being moved")); err != nil {
		t.Fatal(err)
	}
	r.stats.Observe(consumer.Halted{Partition: orders(0), Reason: consumer.ReasonPaused, RetryIn: time.Second,
		Err: &epoch.PausedError{Partition: orders(0), PauseState: epoch.PauseState{Mode: epoch.Paused, By: "anna"}}})
	_, page := get(r.page(nil), "")
	wants(t, page, "Paused. 1 partition is paused", "by anna: the warehouse is being moved")
	if strings.Contains(page, "Halted here") {
		t.Error("it is shown as halted")
	}
	p := operate.Decision{Kind: operate.DecidedHalt, Partition: orders(0), From: 0, To: 0, Reason: "paused: anna moves the warehouse"}
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Record(t.Context(), []operate.Decision{p}); err != nil {
		t.Fatal(err)
	}
	_, page = get(r.page(nil), "")
	wants(t, page, "anna moves the warehouse", "0 halted, 1 paused")
	if strings.Contains(page, `class="state halted"`) {
		t.Error("in the decisions it looks halted")
	}
}

func TestASuspicionIsInTheTimelineWithWhoSuspectedWhom(t *testing.T) {
	r := newRig(t)
	d := operate.Decision{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: "billing"}, Owner: "worker-b", From: -1, To: -1, Reason: "worker-c on pod-c (member m): silent for 1.6s"}
	if err := operate.RecordsIn[*memsink.Tx](r.sink).Record(t.Context(), []operate.Decision{d}); err != nil {
		t.Fatal(err)
	}
	_, page := get(r.page(nil), "")
	wants(t, page, "suspected billing worker-b: worker-c on pod-c (member m): silent for 1.6s")
}

func TestAReplayThatFailedDoesNotLookWell(t *testing.T) {
	r := newRig(t)
	r.deadLetter(orders(0), 3, errors.New("no such customer"))
	ls, err := r.op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	if err == nil {
		_, err = r.op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: ls[0], By: "anna", Reason: "for the test"})
	}
	if err != nil {
		t.Fatal(err)
	}
	of, err := operate.RecordsIn[*memsink.Tx](r.sink).Requests(t.Context(), []epoch.Partition{orders(0)})
	if err == nil {
		err = operate.RecordsIn[*memsink.Tx](r.sink).ReplayFailed(t.Context(), of.Replays[0], epoch.Fence{Origin: epoch.Origin{Partition: orders(0)}, Epoch: 1}, errors.New("still no such customer"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, page := get(r.page(nil), ""); !strings.Contains(page, `<span class="state halted">replay-failure</span>`) {
		t.Error("it looks well")
	}
}

func TestAPartitionWithMessagesThatDoesNotMoveIsCalledThat(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.stats.Observe(consumer.Joined{})
		r.claims(orders(0), "frozen")
		h := r.page(func(o *statusz.Options) {
			o.Logs = logsEnd(500)
			o.Owner = func(owner string) statusz.Owner {
				return statusz.Owner{Name: "the " + owner + " one", URL: "/pods/1", Note: "not ready"}
			}
		})
		_, page := get(h, "")
		wants(t, page, "billing/orders/0 claimed", "To apply in the group 500")
		pass(4 * time.Second)
		_, page = get(h, "")
		wants(t, page, "does not move for 4 s, with messages to apply", "the frozen one not ready", "Waiting. 1 partition is")
		if !strings.Contains(page, `href="/pods/1"`) {
			t.Error("no link to the owner's page")
		}
	})
}

func TestTheGroupsSpeedIsTakenFromItsPositions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		f := r.claims(orders(0), "elsewhere")
		h := r.page(nil)
		for range 5 {
			get(h, "")
			pass(2 * time.Second)
			to := f.Next + 500
			if err := r.sink.Commit(t.Context(), []epoch.Advance{{Partition: orders(0), Claim: f.Claim, From: f.Next, To: to}}, epoch.TxOptions{}, nil2); err != nil {
				t.Fatal(err)
			}
			f.Next = to
		}
		_, page := get(h, "")
		wants(t, page, "Offsets that the group has passed 250 a second", "2,500 – 250")
	})
}

func TestOfVeryManyPartitionsThoseInTroubleAreListed(t *testing.T) {
	r := newRig(t)
	for n := range int32(1200) {
		r.says(fence(orders(n)))
	}
	r.halts(orders(1199), consumer.ReasonSink, errors.New("this is why"))
	_, page := get(r.page(func(o *statusz.Options) { o.Operator = nil }), "")
	wants(t, page, "200 more partitions are not listed", "billing/orders/1199 halted sink")
	if n := strings.Count(page, `<tr role="row" class="here">`); n != 1000 {
		t.Errorf("%d rows", n)
	}
}

func TestDeadLettersAndTheOutboxAreListedWithoutContents(t *testing.T) {
	r := newRig(t)
	r.deadLetter(orders(0), 41, errors.New("no such customer"))
	_, page := get(r.page(func(o *statusz.Options) {
		(&outboxOf{entry: operate.OutboxEntry{ID: 9, Partition: orders(0), Method: "POST", URL: "https://payments.example", IdempotencyKey: "k-9", Body: []byte("secret")}}).in(o)
	}), "")
	wants(t, page, "offset 41", "no such customer", "POST https://payments.example", "k-9")
	if strings.Contains(page, "secret") {
		t.Error("the page shows what a message or a request holds")
	}
	if strings.Contains(page, "Outbox here") {
		t.Error("the page has a number of entries that nobody has counted")
	}
	r.holds(orders(0))
	r.stats.ObserveBacklog(outbox.Backlog{Partition: orders(0), Entries: 7})
	_, page = get(r.page(func(*statusz.Options) {}), "")
	wants(t, page, "Outbox here 7")
}

func TestDeferredMessagesAreListedApartFromDeadLettersWithTheirTimes(t *testing.T) {
	r := newRig(t)
	_, page := get(r.page(annaMay), "")
	if strings.Contains(page, "Deferred") {
		t.Error("the page speaks of deferred messages, and there are none")
	}
	r.defers(orders(0), 41, errors.New("the bank does not answer"))
	h := r.page(annaMay)
	_, page = get(h, "")
	wants(t, page, "Dead letters 0", "There are none.", "Deferred by their handler", "offset 41", "the bank does not answer", "deferred 1 time", "withdraw")
	sent := func(kind string) {
		_, page := get(h, "act?about=deadletter&id=1&kind="+kind)
		form := fields(page)
		form.Set("reason", "for the test")
		if answer := request(h, post("act", form)); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s: %d", kind, answer.StatusCode)
		}
	}
	sent("withdraw")
	_, page = get(r.page(annaMay), "")
	wants(t, page, "Dead letters 1", "the bank does not answer")
	if strings.Contains(page, "Deferred by their handler") {
		t.Error("what was withdrawn is still listed as deferred")
	}
}

func TestProbes(t *testing.T) {
	ready := func(s *stats.Stats) (int, string) {
		w := httptest.NewRecorder()
		statusz.Readyz(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	r := newRig(t)
	if code, body := ready(r.stats); code != http.StatusServiceUnavailable || !strings.Contains(body, "not a member") {
		t.Errorf("before it joined: %d %s", code, body)
	}
	r.holds(orders(0))
	r.stats.Observe(consumer.Advanced{Partition: orders(0), Epoch: 1, To: 1, Messages: 1, Lag: 1_000_000_000})
	if code, body := ready(r.stats); code != http.StatusOK {
		t.Errorf("far behind: %d %s", code, body)
	}
	r.halts(orders(0), consumer.ReasonSink, errors.New("no database"))
	if code, body := ready(r.stats); code != http.StatusServiceUnavailable || !strings.Contains(body, "no database") {
		t.Errorf("halted: %d %s", code, body)
	}
	r.stats.Observe(consumer.Left{Cause: errors.New("no broker")})
	if code, body := ready(r.stats); code != http.StatusServiceUnavailable || !strings.Contains(body, "no broker") {
		t.Errorf("without a broker: %d %s", code, body)
	}
	w := httptest.NewRecorder()
	statusz.Livez(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
	if w.Code != http.StatusOK {
		t.Errorf("livez without broker and database: %d", w.Code)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, o := range map[string]statusz.Options{
		"nothing to show":   {},
		"nothing to act on": {Stats: stats.New(), MayAct: func(*http.Request) (string, bool) { return "", false }},
	} {
		if _, err := statusz.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func ExampleNew() {
	s := stats.New() // whose Observe is in consumer.Options
	page, err := statusz.New(statusz.Options{Title: "billing", Stats: s})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/status/", http.StripPrefix("/status", page))
	mux.HandleFunc("/livez", statusz.Livez)
	mux.Handle("/readyz", statusz.Readyz(s))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Println(w.Code)
	// Output: 503
}
