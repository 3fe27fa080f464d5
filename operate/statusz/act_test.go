package statusz_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// nil2 applies nothing.
func nil2(context.Context, *memsink.Tx) error { return nil }

// form is that of an act which was decided on f.
func form(f epoch.Fence, kind operate.ActKind) url.Values {
	return url.Values{
		"about": {"partition"}, "group": {f.Partition.Group}, "topic": {f.Partition.Topic}, "number": {strconv.Itoa(int(f.Partition.Number))},
		"kind": {string(kind)}, "reason": {"for the test"}, "claim": {epoch.NewClaimID().String()},
		"seen-epoch": {strconv.FormatInt(int64(f.Epoch), 10)}, "seen-claim": {f.Claim.String()}, "seen-next": {strconv.FormatInt(int64(f.Next), 10)},
	}
}

// outboxOf is an operator with one entry in the outbox.
type outboxOf struct {
	operate.Operator
	entry operate.OutboxEntry
	did   []operate.OutboxAct
}

func (o *outboxOf) OutboxEntries(context.Context, operate.OutboxQuery) ([]operate.OutboxEntry, error) {
	e := o.entry
	e.Body, e.Header = nil, nil
	return []operate.OutboxEntry{e}, nil
}

func (o *outboxOf) OutboxEntry(_ context.Context, id int64) (operate.OutboxEntry, error) {
	if id != o.entry.ID {
		return operate.OutboxEntry{}, operate.ErrNoOutboxEntry
	}
	return o.entry, nil
}

func (o *outboxOf) DoOutbox(_ context.Context, a operate.OutboxAct) error {
	o.did = append(o.did, a)
	return nil
}

// in makes o the page's operator.
func (o *outboxOf) in(page *statusz.Options) {
	o.Operator, page.Operator = page.Operator, o
}

func TestAnActIsShownBeforeItIsDoneAndThenDoneOnce(t *testing.T) {
	for _, c := range []struct {
		kind  operate.ActKind
		query string
		shows []string
		check func(before, after epoch.Fence) bool
	}{
		{operate.ActPause, "", []string{"Takes claims takes claims paused"}, func(_, f epoch.Fence) bool { return f.Pause.Mode == epoch.Paused && f.Pause.By == "anna" }},
		{operate.ActEvict, "", []string{"Owner here operator anna"}, func(b, f epoch.Fence) bool { return f.Claim != b.Claim && f.Next == b.Next }},
		{operate.ActRewind, "&to=17", []string{"Next offset 0 17"}, func(_, f epoch.Fence) bool { return f.Next == 17 }},
		{operate.ActRewind, "&to=%2B17", []string{"Next offset 0 17"}, func(_, f epoch.Fence) bool { return f.Next == 17 }},
		{operate.ActRewind, "&to=start", []string{"Next offset 0 3"}, func(_, f epoch.Fence) bool { return f.Next == 3 }},
		{operate.ActRewind, "&to=end", []string{"Next offset 0 500"}, func(_, f epoch.Fence) bool { return f.Next == 500 }},
		{operate.ActSkip, "&to=4", []string{"Next offset 0 4", "Offsets 0 to 3 are never applied."}, func(_, f epoch.Fence) bool { return f.Next == 4 }},
		{operate.ActRebase, "&log=another&to=0", []string{"Log log another"}, func(_, f epoch.Fence) bool { return f.Log == "another" }},
		{operate.ActRebase, "&source=elsewhere", []string{"Lease issuer", "issuer elsewhere"}, func(_, f epoch.Fence) bool { return f.Source == "elsewhere" }},
	} {
		r := newRig(t)
		before := r.holds(orders(0))
		h := r.page(func(o *statusz.Options) {
			annaMay(o)
			o.Logs = logsEnd(500)
		})
		status, page := get(h, "act?about=partition&group=billing&topic=orders&number=0&reason=for+the+test&kind="+string(c.kind)+c.query)
		if status != http.StatusOK {
			t.Errorf("%s: %d", c.kind, status)
		}
		wants(t, page, append(c.shows, "Reason: for the test", "will name anna as the operator")...)
		if now := r.sink.Fences()[orders(0)]; now != before {
			t.Errorf("%s: looking at it has done it", c.kind)
		}
		answer := request(h, post("act", fields(page)))
		if answer.StatusCode != http.StatusSeeOther || !strings.HasPrefix(answer.Header.Get("Location"), "partition?") {
			t.Errorf("%s: %d to %q", c.kind, answer.StatusCode, answer.Header.Get("Location"))
		}
		after := r.sink.Fences()[orders(0)]
		if !c.check(before, after) || after.Epoch != before.Epoch+1 {
			t.Errorf("%s: %+v", c.kind, after)
		}
		_, detail := get(h, answer.Header.Get("Location"))
		wants(t, detail, "Done: "+string(c.kind), "by anna: ", "for the test")
		if answer := request(h, post("act", fields(page))); answer.StatusCode != http.StatusConflict {
			t.Errorf("%s, sent twice: %d", c.kind, answer.StatusCode)
		}
		if now := r.sink.Fences()[orders(0)]; now != after {
			t.Errorf("%s, sent twice, was done twice", c.kind)
		}
	}
}

func TestAJobIsRunNowAndMovedToATime(t *testing.T) {
	r := newRig(t)
	before := r.job(1_798_770_600_000_000)
	h := r.page(annaMay)
	const job = "about=partition&group=reports&topic=nightly&number=0&reason=for+the+test"
	_, page := get(h, "partition?"+job)
	wants(t, page, "run : runs the job now", "Time from which on")
	if strings.Contains(page, "rebase") {
		t.Error("a job is offered another log")
	}
	for _, c := range []struct {
		query, shows string
		next         epoch.Offset
		mark         epoch.Mark
	}{
		{"&kind=run", "The owner of the job runs it once", 1_798_770_600_000_000, 1},
		{"&kind=skip&to=2027-01-02T03:30:00%2B01:00", "Next offset 2027-01-01T02:30:00Z 2027-01-02T02:30:00Z", 1_798_857_000_000_000, epoch.NoMark},
	} {
		status, page := get(h, "act?"+job+c.query)
		if wants(t, page, c.shows); status != http.StatusOK {
			t.Errorf("%s: %d", c.query, status)
		}
		if answer := request(h, post("act", fields(page))); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s: %d", c.query, answer.StatusCode)
		}
		if after := r.sink.Fences()[before.Partition]; after.Next != c.next || after.Mark != c.mark {
			t.Errorf("%s: %+v", c.query, after)
		}
	}
	for query, want := range map[string]int{
		"&kind=rewind&to=17h": http.StatusBadRequest, "&kind=rewind&to=start": http.StatusBadRequest, "&kind=rewind&to=end": http.StatusOK,
	} {
		if status, _ := get(h, "act?"+job+query); status != want {
			t.Errorf("%s: %d, want %d", query, status, want)
		}
	}
}

func TestAJobBetweenTwoStepsIsNotRun(t *testing.T) {
	r := newRig(t)
	r.job(1_798_770_600_000_003)
	status, page := get(r.page(annaMay), "act?about=partition&group=reports&topic=nightly&number=0&reason=for+the+test&kind=run")
	if wants(t, page, "3 steps of 2027-01-01T02:30:00Z are done"); status != http.StatusConflict {
		t.Error(status)
	}
}

func TestResumeEndsAPause(t *testing.T) {
	r := newRig(t)
	f := r.holds(orders(0))
	h := r.page(annaMay)
	for _, kind := range []operate.ActKind{operate.ActPause, operate.ActResume} {
		f = r.sink.Fences()[orders(0)]
		if answer := request(h, post("act", form(f, kind))); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s: %d", kind, answer.StatusCode)
		}
	}
	if now := r.sink.Fences()[orders(0)]; now.Pause != (epoch.PauseState{}) || now.Epoch != f.Epoch+1 {
		t.Errorf("%+v", now)
	}
}

func TestAnActThatWouldBeRefusedIsNotOffered(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	h := r.page(annaMay)
	for query, want := range map[string]string{
		"kind=resume&reason=why":                  "It would be refused.",
		"kind=pause":                              "say why",
		"kind=skip&reason=why":                    "say where to",
		"kind=rewind&reason=why&to=0":             "Nothing to do: it is there",
		"kind=rewind&reason=why&to=-1":            "offset -1 is below 0",
		"kind=rewind&reason=why&to=end":           "it is not known where the log begins and ends",
		"kind=rebase&reason=why":                  "name the log or the lease issuer to accept",
		"kind=destroy&reason=why":                 "no such act",
		"kind=rebase&reason=why&log=else":         "say where to continue in it",
		"kind=rebase&reason=why&log=else&to=%2B5": "the new log has other offsets",
	} {
		_, page := get(h, "act?about=partition&group=billing&topic=orders&number=0&"+query)
		wants(t, page, want)
		if strings.Contains(page, "<form") {
			t.Errorf("%s: it is offered all the same", query)
		}
	}
}

func TestAnActOnWhatHasChangedIsRefused(t *testing.T) {
	r := newRig(t)
	seen := r.holds(orders(0))
	r.claims(orders(0), "another")
	h := r.page(annaMay)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, post("act", form(seen, operate.ActPause)))
	if answer.Code != http.StatusConflict {
		t.Error(answer.Code)
	}
	wants(t, answer.Body.String(), "It has changed", "Read it again")
	if now := r.sink.Fences()[orders(0)]; now.Pause.Mode != epoch.Running {
		t.Errorf("%+v", now)
	}

	moved := r.claims(orders(0), "another")
	if err := r.sink.Commit(t.Context(), []epoch.Advance{{Partition: orders(0), Claim: moved.Claim, From: moved.Next, To: moved.Next + 5}}, epoch.TxOptions{}, nil2); err != nil {
		t.Fatal(err)
	}
	skip := form(moved, operate.ActSkip)
	skip.Set("to", "9")
	if answer := request(h, post("act", skip)); answer.StatusCode != http.StatusConflict {
		t.Errorf("skip of a partition that has moved: %d", answer.StatusCode)
	}
}

// The owner commits between the preview and the action. It is evicted, and the action is tried again.
func TestAnActMovesAPartitionThatWorks(t *testing.T) {
	for _, c := range []struct {
		to     string
		status int
		next   epoch.Offset
	}{
		{"1000", http.StatusSeeOther, 1000},
		{"start", http.StatusSeeOther, 3},
		{"4", http.StatusConflict, 7}, // it was forward, and would be back
	} {
		r := newRig(t)
		f := r.holds(orders(0))
		h := r.page(func(o *statusz.Options) { annaMay(o); o.Logs = logsEnd(1000) })
		_, page := get(h, "act?about=partition&group=billing&topic=orders&number=0&reason=for+the+test&kind=rewind&to="+c.to)
		if err := r.sink.Commit(t.Context(), []epoch.Advance{{Partition: orders(0), Claim: f.Claim, From: f.Next, To: 7}}, epoch.TxOptions{}, nil2); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, post("act", fields(page)))
		if w.Code != c.status {
			t.Errorf("to %s: %d %s", c.to, w.Code, text(w.Body.String()))
		}
		if c.status == http.StatusConflict {
			wants(t, w.Body.String(), "The position was not set.", "past where it should go")
		}
		if now := r.sink.Fences()[orders(0)]; now.Next != c.next || now.Owner != "operator anna" {
			t.Errorf("to %s: %+v", c.to, now)
		}
	}
}

func TestWhatAnotherSiteSendsIsRefused(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"cross-site":             func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"same-site":              func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"another origin":         func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "https://evil.example") },
		"an origin that is null": func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") },
	} {
		r := newRig(t)
		f := r.holds(orders(0))
		sent := post("act", form(f, operate.ActPause))
		change(sent)
		if answer := request(r.page(annaMay), sent); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", name, answer.StatusCode)
		}
		if now := r.sink.Fences()[orders(0)]; now != f {
			t.Errorf("%s: it was done", name)
		}
	}
}

func TestWhoActsIsWhoTheApplicationSaysAndNotTheForm(t *testing.T) {
	r := newRig(t)
	f := r.holds(orders(0))
	sent := form(f, operate.ActPause)
	sent.Set("by", "somebody else")
	if answer := request(r.page(annaMay), post("act", sent)); answer.StatusCode != http.StatusSeeOther {
		t.Fatal(answer.StatusCode)
	}
	ds, err := r.op.History(t.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedPause}})
	if err != nil || len(ds) != 1 || ds[0].By != "anna" || ds[0].Reason != "for the test" {
		t.Errorf("%+v, %v", ds, err)
	}
}

func TestDeadLettersAreReplayedWithdrawnAndDiscarded(t *testing.T) {
	r := newRig(t)
	r.deadLetter(orders(0), 3, errors.New("no such customer"))
	h := r.page(annaMay)
	for _, kind := range []string{"replay", "withdraw", "discard"} {
		_, page := get(h, "act?about=deadletter&id=1&kind="+kind)
		wants(t, page, ", because: no such customer", "will name anna as the operator")
		sent := fields(page)
		sent.Set("reason", "for the test")
		if answer := request(h, post("act", sent)); answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "./" {
			t.Errorf("%s: %d", kind, answer.StatusCode)
		}
		if kind == "replay" { // the same again, from the same page
			if answer := request(h, post("act", sent)); answer.StatusCode != http.StatusConflict {
				t.Errorf("%s twice: %d", kind, answer.StatusCode)
			}
		}
	}
	if status, _ := get(h, "act?about=deadletter&id=1&kind=replay"); status != http.StatusNotFound {
		t.Errorf("one that is gone: %d", status)
	}
	ds, err := r.op.History(t.Context(), operate.HistoryQuery{Limit: 3})
	if err != nil || len(ds) != 3 || ds[0].Kind != operate.DecidedDiscard || ds[2].Kind != operate.DecidedReplayRequest || ds[0].By != "anna" {
		t.Errorf("%+v, %v", ds, err)
	}
}

func TestEntriesOfTheOutboxAreRetriedAndDiscarded(t *testing.T) {
	box := &outboxOf{entry: operate.OutboxEntry{ID: 9, Partition: orders(0), Method: "POST", URL: "https://payments.example", IdempotencyKey: "k-9"}}
	r := newRig(t)
	h := r.page(func(o *statusz.Options) { annaMay(o); box.in(o) })
	for _, kind := range []string{"retry", "discard"} {
		_, page := get(h, "act?about=outbox&id=9&kind="+kind)
		sent := fields(page)
		sent.Set("reason", "for the test")
		if answer := request(h, post("act", sent)); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s: %d", kind, answer.StatusCode)
		}
	}
	if len(box.did) != 2 || box.did[0].Kind != operate.OutboxRetry || box.did[1].Kind != operate.OutboxDiscard || box.did[1].By != "anna" || box.did[1].Seen.IdempotencyKey != "k-9" {
		t.Errorf("%+v", box.did)
	}
	_, page := get(h, "act?about=outbox&id=9&kind=discard")
	box.entry.IdempotencyKey = "another"
	sent := fields(page)
	sent.Set("reason", "for the test")
	if answer := request(h, post("act", sent)); answer.StatusCode != http.StatusNotFound || len(box.did) != 2 {
		t.Errorf("one that was replaced: %d", answer.StatusCode)
	}
}

func TestFormsThatMakeNoSenseAreRefused(t *testing.T) {
	r := newRig(t)
	f := r.holds(orders(0))
	h := r.page(annaMay)
	for _, c := range []struct {
		change func(url.Values)
		want   int
	}{
		{func(v url.Values) { v.Set("about", "everything") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("about", "outbox") }, http.StatusBadRequest}, // there is none
		{func(v url.Values) { v.Set("number", "x") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("number", "99999999999") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("topic", "no such") }, http.StatusNotFound},
		{func(v url.Values) { v.Set("to", "many") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("to", "@2026-12-31T02:30:00Z") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("seen-epoch", "") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("seen-claim", "x") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("claim", "x") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("reason", "") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("reason", "two\nlines") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("kind", "") }, http.StatusBadRequest},
		{func(v url.Values) { v.Set("reason", strings.Repeat("x", 2<<20)) }, http.StatusBadRequest},
	} {
		sent := form(f, operate.ActPause)
		c.change(sent)
		if answer := request(h, post("act", sent)); answer.StatusCode != c.want {
			t.Errorf("%.200s: %d, want %d", sent.Encode(), answer.StatusCode, c.want)
		}
	}
	if now := r.sink.Fences()[orders(0)]; now != f {
		t.Errorf("something was done: %+v", now)
	}
}

func TestAnActInDoubtSaysHowToFindOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		f := r.holds(orders(0))
		h := r.page(func(o *statusz.Options) { annaMay(o); o.Operator = doubtful{r.op} })
		sent := form(f, operate.ActPause)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, post("act", sent))
		if w.Code != http.StatusBadGateway {
			t.Error(w.Code)
		}
		wants(t, w.Body.String(), "Not known whether it was done", "under claim "+sent.Get("claim"))
	})
}

type doubtful struct{ operate.Operator }

func (doubtful) Act(context.Context, operate.Act) (epoch.Fence, error) {
	return epoch.Fence{}, epoch.ErrInDoubt
}
