package outbox_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/outbox"
)

// rawReceiver answers each connection's request by hand: reply writes what it
// likes, and hangs with the connection open until the test is over.
func rawReceiver(t *testing.T, reply func(w io.Writer)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, over := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				context.AfterFunc(ctx, func() { _ = conn.Close() })
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				reply(conn)
				<-ctx.Done()
			})
		}
	})
	t.Cleanup(func() {
		over()
		_ = l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// A receiver that answers as no one should costs its own entry a try, after
// RequestTimeout at the latest, and nobody else anything.
func TestAReceiverThatMisbehavesHoldsUpOnlyItsOwnEntries(t *testing.T) {
	for name, reply := range map[string]func(w io.Writer){
		"says nothing":            func(io.Writer) {},
		"stops in the status":     func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 2") },
		"stops in the headers":    func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nA: b\r\n") },
		"stops in the body":       func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") },
		"stops in a refusal":      func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\nhalf") },
		"is no HTTP":              func(w io.Writer) { _, _ = io.WriteString(w, "SSH-2.0-x\r\n\r\n") },
		"says 102 and no more":    func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 102 Processing\r\n\r\n") },
		"switches protocols":      func(w io.Writer) { _, _ = io.WriteString(w, switching) },
		"says 103 without end":    func(w io.Writer) { repeat(w, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") },
		"has headers without end": func(w io.Writer) { _, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\n"); repeat(w, "A: b\r\n") },
		"has a chunk without end": func(w io.Writer) {
			_, _ = io.WriteString(w, "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
			_, _ = io.WriteString(w, "slow")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := fast
			o.RequestTimeout = 100 * time.Millisecond
			o.OnAnswer = func(context.Context, *tx, outbox.Sent, outbox.Answer) error { return nil }
			r := newRig(t, o, ok)
			good := r.url
			r.url = rawReceiver(t, reply)
			r.add("bad 1", "bad 2")
			r.url = good
			r.add("good 3")
			run := r.relay(1)
			r.await("the good one delivered and the bad one tried twice", func() bool {
				tries := slices.DeleteFunc(r.told(), func(e outbox.Event) bool { return e.Key != "bad" })
				return len(r.db.left()) == 2 && len(tries) >= 2
			})
			r.stop(run)
			for _, e := range r.told() {
				if e.Key == "bad" && (e.Kind == outbox.Delivered || e.Err == nil || string(e.Body) != "1") {
					t.Errorf("told %v %v of %s", e.Kind, e.Err, e.Body)
				}
			}
		})
	}
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"

// repeat writes until nobody reads any more.
func repeat(w io.Writer, text string) {
	all := bytes.Repeat([]byte(text), 1000)
	for {
		if _, err := w.Write(all); err != nil {
			return
		}
	}
}

// The body of a switched protocol is the connection itself, which no context
// ends.
func TestAReceiverThatSwitchesProtocolsDoesNotHoldUpTheEndOfAClaim(t *testing.T) {
	answered := make(chan struct{}, 1)
	o := fast
	o.RequestTimeout = time.Hour
	r := newRig(t, o, ok)
	r.url = rawReceiver(t, func(w io.Writer) {
		_, _ = io.WriteString(w, switching)
		answered <- struct{}{}
	})
	r.add("a 1")
	run := r.relay(1)
	<-answered
	r.await("a report", func() bool { return len(r.told()) > 0 })
	r.stop(run)
	if e := r.told()[0]; e.Kind != outbox.Refused || e.Status != http.StatusSwitchingProtocols {
		t.Errorf("told %+v", e)
	}
}

// What is kept of an answer for the application does not decide what it means.
func TestAStaleAnswerIsRecognisedHoweverLittleOfAnswersIsKept(t *testing.T) {
	o := fast
	o.MaxAnswer = 1
	o.OnRefused = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
		t.note(fmt.Sprint(a.Status))
		return nil
	}
	r := newRig(t, o, ok)
	store := httpfence.NewMemory()
	r.url = newServer(t, httpfence.Handler(store, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{}))
	r.add("a 1")
	r.stop(r.delivered(r.relay(9)))
	r.add("a 2")
	r.over(r.relay(8))
	if left := r.db.left(); len(left) != 1 || len(r.db.notes()) != 0 {
		t.Errorf("left %v, noted %q", left, r.db.notes())
	}
}

func (r *rig) delivered(run *running) *running {
	r.Helper()
	r.awaitEmpty()
	return run
}

func TestNoMoreOfAnAnswerIsKeptThanMaxAnswer(t *testing.T) {
	o := fast
	o.MaxAnswer = 8
	o.OnAnswer = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
		t.note(fmt.Sprintf("%s %v", a.Body, a.Truncated))
		return nil
	}
	r := newRig(t, o, ok)
	r.add("a 1", "a 2")
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		repeat(w, "endless ")
	}))
	r.add("a 3")
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "eight by") }))
	r.add("a 4")
	r.relay(1)
	r.awaitEmpty()
	want := []string{"answer t true", "answer t true", "endless  true", "eight by false"}
	if got := r.db.notes(); !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
}

// Whether the receiver or the sink is wrong is told when the sink has answered,
// and not before.
func TestWhoIsRightAboutAStaleAnswerIsAskedUntilTheSinkAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer error
		want   string
	}{
		"the receiver": {&epoch.StaleError{Partition: orders}, "was superseded"},
		"the sink":     {nil, "another partition uses the same scope"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			store := httpfence.NewMemory()
			url := newServer(t, httpfence.Handler(store, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{}))
			r := newRig(t, fast, ok)
			box, err := outbox.New(table{}, outbox.Options[*tx]{
				Group: "billing", RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond,
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			r.url, r.box = url, box
			r.add("a 1")
			r.stop(r.delivered(r.relay(9)))
			r.add("a 2")
			before := r.db.begun
			r.db.fail = func(n int) error {
				switch {
				case n == before+1: // the entry is read
					return nil
				case n < before+5:
					return fmt.Errorf("%w: the database is away", epoch.ErrTransient)
				default:
					return c.answer
				}
			}
			r.over(r.relay(8))
			if text := log.String(); !strings.Contains(text, c.want) || r.db.begun != before+5 {
				t.Errorf("after %d transactions the log says\n%s", r.db.begun-before, text)
			}
		})
	}
}

// late is a network in which requests can be held back, and delivered when the
// test says so, whether or not the sender still waits for the answer.
type late struct {
	http.RoundTripper
	mu   sync.Mutex
	hold bool
	held []*http.Request
}

func (l *late) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	hold := l.hold
	if hold {
		copied := req.Clone(context.WithoutCancel(req.Context()))
		copied.Body, _ = req.GetBody()
		l.held = append(l.held, copied)
	}
	l.mu.Unlock()
	if !hold {
		return l.RoundTripper.RoundTrip(req)
	}
	_ = req.Body.Close()
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func (l *late) setHold(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = on
}

func (l *late) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// fencedRig has a receiver with a fence, whose effects got records.
func fencedRig(t *testing.T, o outbox.Options[*tx], network func(http.RoundTripper) http.RoundTripper) (*rig, *[]string) {
	t.Helper()
	r := &rig{T: t, db: newDatabase()}
	var mu sync.Mutex
	var effects []string
	srv := httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		c, _ := httpfence.CallOf(req.Context())
		mu.Lock()
		defer mu.Unlock()
		effects = append(effects, fmt.Sprintf("%s under %d", body, c.Epoch))
	}), httpfence.Options{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	o.Group, o.Logger = "billing", slog.New(slog.DiscardHandler)
	o.Client = &http.Client{Transport: network(srv.Client().Transport)}
	o.Observe = func(e outbox.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
	box, err := outbox.New(table{}, o)
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	return r, &effects
}

func TestAZombiesRequestThatArrivesLateHasNoEffect(t *testing.T) {
	net := &late{hold: true}
	r, effects := fencedRig(t, fast, func(rt http.RoundTripper) http.RoundTripper { net.RoundTripper = rt; return net })
	r.add("a 1", "a 2")
	zombie := r.relay(4)
	r.await("the zombie's request on its way", func() bool { return net.waiting() == 1 })
	net.setHold(false)
	next := r.relay(5) // both are alive
	r.awaitEmpty()
	res, err := net.RoundTripper.RoundTrip(net.held[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the late request was answered %d", res.StatusCode)
	}
	r.stop(zombie)
	r.stop(next)
	if want := []string{"1 under 5", "2 under 5"}; !slices.Equal(*effects, want) {
		t.Errorf("effects %q, want %q", *effects, want)
	}
}

// chance is a history: everything that can fail does so now and then.
type chance struct {
	*rand.Rand
	mu sync.Mutex
}

func (c *chance) oneIn(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.IntN(n) == 0
}

// lossy loses requests and answers.
type lossy struct {
	http.RoundTripper
	*chance
}

func (l lossy) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.oneIn(8) {
		_ = req.Body.Close()
		return nil, errLost
	}
	res, err := l.RoundTripper.RoundTrip(req)
	if err == nil && l.oneIn(8) { // after the effect
		_ = res.Body.Close()
		return nil, errLost
	}
	return res, err
}

// TestClaimsMayEndAtAnyMoment ends claims before, between and after each of the
// steps of a relay, while requests, answers, transactions, their acknowledgements and
// OnAnswer fail. In the end each entry has had its effect once, those of a key in
// order, and each answer is recorded once.
func TestClaimsMayEndAtAnyMoment(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			luck := &chance{Rand: rand.New(rand.NewPCG(seed, 1))}
			var now sync.Mutex
			end := func() {} // of the claim there is
			maybeEnd := func() {
				if luck.oneIn(12) {
					now.Lock()
					defer now.Unlock()
					end()
				}
			}
			o := fast
			o.RetryMax = 2 * time.Millisecond
			o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
				maybeEnd()
				t.note(string(e.Body))
				if luck.oneIn(10) {
					return errTest
				}
				return nil
			}
			r, effects := fencedRig(t, o, func(rt http.RoundTripper) http.RoundTripper { return lossy{rt, luck} })
			const keys, each = 5, 8
			for i := range each {
				for k := range keys {
					r.add(fmt.Sprintf("k%d k%d/%02d", k, k, i))
				}
			}
			r.db.fail = func(int) error {
				maybeEnd()
				if luck.oneIn(10) {
					return fmt.Errorf("%w: away", epoch.ErrTransient)
				}
				return nil
			}
			claims := epoch.Epoch(0)
			for len(r.db.left()) > 0 {
				if claims++; claims > 3000 {
					t.Fatalf("after %d claims %d entries are left", claims, len(r.db.left()))
				}
				c := &claimInDoubt{claim: &claim{db: r.db, epoch: claims, applied: make(chan struct{}, 1)}, luck: luck}
				ctx, cancel := context.WithCancel(t.Context())
				c.end = cancel
				now.Lock()
				end = cancel
				now.Unlock()
				done := make(chan struct{})
				go func() { defer close(done); r.box.Relay(ctx, c) }()
				empty := time.NewTicker(time.Millisecond)
				limit := time.NewTimer(10 * time.Second)
				for running := true; running; {
					select {
					case <-done:
						running = false
					case <-empty.C:
						if len(r.db.left()) == 0 {
							cancel()
						}
					case <-limit.C:
						t.Fatalf("the relay stands still under claim %d; left %v", claims, r.db.left())
					}
				}
				empty.Stop()
				limit.Stop()
				cancel()
			}
			for what, got := range map[string][]string{"effects": *effects, "answers": r.db.notes()} {
				of := map[string][]string{}
				for _, s := range got {
					s, _, _ = strings.Cut(s, " ")
					of[s[:2]] = append(of[s[:2]], s)
				}
				for k, all := range of {
					if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) || len(all) != each {
						t.Errorf("%s of key %s: %q", what, k, all)
					}
				}
				if len(of) != keys {
					t.Errorf("%s of %d keys", what, len(of))
				}
			}
		})
	}
}

// claimInDoubt loses acknowledgements, and is over then.
type claimInDoubt struct {
	*claim
	luck *chance
	end  func()
}

func (c *claimInDoubt) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	if c.luck.oneIn(15) {
		c.end()
		return errTest // as a claim that has ended says
	}
	err := c.claim.Do(ctx, apply)
	if err == nil && c.luck.oneIn(15) {
		c.end()
		return fmt.Errorf("%w: the acknowledgement was lost", epoch.ErrInDoubt)
	}
	return err
}

func TestTheHeadersOfAnAnswerAreBounded(t *testing.T) {
	r := newRig(t, fast, ok)
	o := fast
	o.Group, o.Logger = "billing", slog.New(slog.DiscardHandler)
	events := make(chan outbox.Event, 100)
	o.Observe = func(e outbox.Event) {
		select {
		case events <- e:
		default:
		}
	}
	box, err := outbox.New(table{}, o) // with a client of its own
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 256<<10))
	}))
	r.add("a 1")
	r.stop(r.relay(1).after(events))
	if len(r.db.left()) != 1 {
		t.Error("an answer with headers of 256 KiB was taken")
	}
}

// after waits for one event.
func (run *running) after(events <-chan outbox.Event) *running {
	select {
	case <-events:
	case <-time.After(20 * time.Second):
	}
	return run
}

// under is a network that knows what is under way in it.
type under struct {
	http.RoundTripper
	way atomic.Int64
}

func (u *under) RoundTrip(req *http.Request) (*http.Response, error) {
	u.way.Add(1)
	defer u.way.Add(-1)
	res, err := u.RoundTripper.RoundTrip(req)
	if err != nil {
		time.AfterFunc(50*time.Millisecond, func() { u.way.Add(-1) }) // it takes its time to end
		u.way.Add(1)
		for tick := time.NewTicker(time.Millisecond); u.way.Load() > 1; {
			<-tick.C
		}
	}
	return res, err
}

func TestTheRelayReturnsAfterItsRequestsHaveEnded(t *testing.T) {
	net := &under{}
	r, _ := fencedRig(t, fast, func(http.RoundTripper) http.RoundTripper { net.RoundTripper = http.DefaultTransport; return net })
	r.url = rawReceiver(t, func(io.Writer) {})
	r.add("a 1")
	run := r.relay(1)
	r.await("a request", func() bool { return net.way.Load() > 0 })
	r.stop(run)
	if n := net.way.Load(); n > 0 {
		t.Errorf("%d requests are under way after the relay has returned", n)
	}
}

func TestNobodyIsToldOfTheAnswerToAnEntryThatAPersonHasDeleted(t *testing.T) {
	o := fast
	o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note(string(e.Body))
		return nil
	}
	var r *rig
	r = newRig(t, o, func(_ *http.Request, body string) int {
		if body == "1" {
			_ = r.db.do(func(t *tx) error { delete(t.rows, 1); return nil })
		}
		return http.StatusOK
	})
	r.add("a 1", "a 2")
	r.relay(1)
	r.awaitEmpty()
	r.await("the answer to 2", func() bool { return len(r.db.notes()) > 0 })
	if got := r.db.notes(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("noted %q", got)
	}
}

// A service may have preconditions of its own.
func TestA412ThatIsNoStaleEpochIsARefusal(t *testing.T) {
	o := fast
	o.OnRefused = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
		t.note(fmt.Sprint(a.Status))
		return nil
	}
	r := newRig(t, o, ok)
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusPreconditionFailed)
		_, _ = io.WriteString(w, `{"type":"https://example.com/changed","status":412}`)
	}))
	r.add("a 1")
	r.relay(1)
	r.awaitEmpty()
	if got := r.db.notes(); !slices.Equal(got, []string{"412"}) {
		t.Errorf("noted %q", got)
	}
}

// What fails in OnAnswer is the entry's, whatever the error says.
func TestATransientFailureOfOnAnswerHoldsUpOnlyItsKey(t *testing.T) {
	o := outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour}
	o.OnAnswer = func(_ context.Context, _ *tx, e outbox.Sent, _ outbox.Answer) error {
		if e.Key == "bad" {
			return fmt.Errorf("%w: a deadlock", epoch.ErrTransient)
		}
		return nil
	}
	r := newRig(t, o, ok)
	r.add("bad 1", "good 2")
	run := r.relay(1)
	r.await("the good one delivered", func() bool { return len(r.db.left()) == 1 })
	r.add("good 3")
	run.wake()
	r.await("the next one delivered", func() bool { return len(r.received()) == 3 && len(r.db.left()) == 1 })
}

func TestADatabaseThatFailsIsGivenTime(t *testing.T) {
	r := newRig(t, outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour}, ok)
	r.add("a 1")
	before := r.db.begun
	failed := make(chan struct{})
	r.db.fail = func(n int) error {
		if n == before+1 {
			close(failed)
		}
		return fmt.Errorf("%w: away", epoch.ErrTransient)
	}
	run := r.relay(1)
	<-failed
	run.wake()
	time.AfterFunc(50*time.Millisecond, run.end)
	r.over(run)
	if r.db.begun != before+1 {
		t.Errorf("%d transactions", r.db.begun-before)
	}
}

func TestAnswersThatNobodyCanTakeAreBounded(t *testing.T) {
	o := outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour, Concurrency: 4}
	o.OnAnswer = func(context.Context, *tx, outbox.Sent, outbox.Answer) error { return errTest }
	r := newRig(t, o, ok)
	for i := range 300 {
		r.add(fmt.Sprintf("- %d", i))
	}
	run := r.relay(1)
	r.await("64 answers", func() bool { return len(r.told()) >= 64 })
	time.AfterFunc(100*time.Millisecond, run.end)
	r.over(run)
	if n := len(r.received()); n > 64+4 {
		t.Errorf("%d requests were sent and none could be settled", n)
	}
}

func TestAnEntryThatCannotBeSentStaysAndIsReported(t *testing.T) {
	o := fast
	o.OnRefused = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note("refused " + string(e.Body))
		return nil
	}
	r := newRig(t, o, ok)
	r.add("a 1", "b 2")
	err := r.db.do(func(t *tx) error {
		row := t.rows[1]
		row.Scope = "changed by a person\n"
		t.rows[1] = row
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.relay(1)
	r.await("two reports and the other one delivered", func() bool {
		return len(r.db.left()) == 1 && len(slices.DeleteFunc(r.told(), func(e outbox.Event) bool { return e.Kind != outbox.Refused })) >= 2
	})
	if got := r.db.notes(); len(got) > 0 {
		t.Errorf("noted %q although there was no answer", got)
	}
}

func TestAReceiverCannotPutATryOffForLongerThanRetryMax(t *testing.T) {
	var n atomic.Int64
	r := newRig(t, fast, ok)
	r.url = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	r.add("a 1")
	r.relay(1)
	r.awaitEmpty()
}

func TestAPasswordInAURLIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, fast, ok)
	events := make(chan outbox.Event, 1)
	box, err := outbox.New(table{}, outbox.Options[*tx]{
		Group: "billing", RetryMin: time.Hour, RetryMax: time.Hour,
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		Observe: func(e outbox.Event) { events <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	r.url = strings.Replace(newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})), "://", "://user:secret@", 1)
	r.add("a 1")
	r.stop(r.relay(1).after(events))
	if text := log.String(); strings.Contains(text, "secret") || !strings.Contains(text, "403") {
		t.Errorf("the log says\n%s", text)
	}
}

func TestWhatIsKnownOfFailingKeysIsBounded(t *testing.T) {
	const known, extra = 4096, 500
	r := newRig(t, outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour, Concurrency: 64}, func(*http.Request, string) int {
		return http.StatusServiceUnavailable
	})
	var all []string
	for i := range known + extra {
		all = append(all, fmt.Sprintf("k%d %d", i, i))
	}
	r.add(all...)
	run := r.relay(1)
	r.await("as many tries as keys are known", func() bool { return len(r.told()) >= known })
	time.AfterFunc(200*time.Millisecond, run.end)
	r.over(run)
	if n := len(r.received()); n > known+64 {
		t.Errorf("%d keys were tried and failed, want no more to be read after %d", n, known)
	}
}

// An entry goes where it was meant to go, with its epoch and key, and nowhere else.
func TestARedirectIsNotFollowed(t *testing.T) {
	for _, status := range []int{301, 302, 307, 308} {
		var elsewhere atomic.Int64
		other := newServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
		o := fast
		o.OnRefused = func(_ context.Context, t *tx, _ outbox.Sent, a outbox.Answer) error {
			t.note(fmt.Sprint(a.Status))
			return nil
		}
		r := newRig(t, o, ok)
		r.url = newServer(t, http.RedirectHandler(other, status))
		r.add("a 1")
		r.relay(1)
		r.awaitEmpty()
		if got := r.db.notes(); elsewhere.Load() > 0 || !slices.Equal(got, []string{fmt.Sprint(status)}) {
			t.Errorf("%d: %d requests elsewhere, noted %q", status, elsewhere.Load(), got)
		}
	}
}
