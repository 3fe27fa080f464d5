package outbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// This file makes one request, and decides from the answer alone whether the entry is delivered,
// refused, fenced, or sent again. relay.go acts on that.

type outcome struct {
	kind       Kind
	answered   bool // answer is set
	answer     Answer
	highest    epoch.Epoch // that the receiver has seen, if kind is Fenced
	err        error
	retryAfter time.Duration // from the receiver's Retry-After
}

func (b *Box[TX]) send(ctx context.Context, e Sent) outcome {
	ctx, cancel := context.WithTimeout(ctx, b.o.RequestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, e.Method, e.URL, bytes.NewReader(e.Body))
	if err != nil {
		return outcome{kind: Refused, err: fmt.Errorf("outbox: entry %d: %w: %w", e.ID, ErrEntry, withoutSecrets(err, e.URL))}
	}
	if e.Header != nil {
		req.Header = e.Header.Clone()
	}
	call := httpfence.Call{Scope: e.Scope, Epoch: e.Epoch, Key: e.IdempotencyKey}
	if err := call.SetHeaders(req.Header); err != nil {
		return outcome{kind: Refused, err: fmt.Errorf("outbox: entry %d: %w: %w", e.ID, ErrEntry, err)}
	}
	res, err := b.client.Do(req)
	if err != nil {
		return outcome{kind: Retrying, err: fmt.Errorf("outbox: send entry %d: %s %s: %w", e.ID, e.Method, receiverOf(e.URL), withoutSecrets(err, e.URL))}
	}
	defer func() { _ = res.Body.Close() }()
	a := Answer{Status: res.StatusCode, Header: res.Header}
	if a.Status == http.StatusSwitchingProtocols {
		return judge(e, a) // the body is the connection, which no context ends
	}
	a.Body, err = io.ReadAll(io.LimitReader(res.Body, int64(max(b.o.MaxAnswer, maxProblem))+1))
	if err != nil && (b.o.OnAnswer != nil || !success(a.Status)) {
		return outcome{kind: Retrying, err: fmt.Errorf("outbox: read the answer to entry %d: %w", e.ID, withoutSecrets(err, e.URL))}
	}
	o := judge(e, a)
	if kept := &o.answer; len(kept.Body) > b.o.MaxAnswer {
		kept.Body, kept.Truncated = slices.Clone(kept.Body[:b.o.MaxAnswer]), true
	}
	return o
}

// maxProblem is the part of an answer's body that is always read, for a Problem of package
// httpfence, which is smaller. It applies even if Options.MaxAnswer is less.
const maxProblem = 8 << 10

// maxDetail limits the characters of a refusal's detail in an error.
const maxDetail = 500

func judge(e Sent, a Answer) outcome {
	o := outcome{answered: true, answer: a}
	if success(a.Status) {
		return o // Delivered
	}
	p, isProblem := httpfence.ReadProblem(a.Header, a.Body)
	switch {
	case isProblem && a.Status == http.StatusPreconditionFailed && p.Type == httpfence.TypeStale && p.Highest <= e.Epoch:
		o.kind = Retrying
		o.answered = false
		o.err = fmt.Errorf("outbox: entry %d: %s answered that scope %q has seen epoch %d, which is not above ours, %d: the receiver's answer is wrong",
			e.ID, receiverOf(e.URL), e.Scope, p.Highest, e.Epoch)
		return o
	case isProblem && a.Status == http.StatusPreconditionFailed && p.Type == httpfence.TypeStale:
		o.kind, o.highest = Fenced, p.Highest
		o.err = &httpfence.StaleError{Scope: e.Scope, Epoch: e.Epoch, Highest: p.Highest}
		return o
	case httpfence.Retryable(a.Status):
		o.kind = Retrying
		o.answered = false // it is not for the application
		if s, err := strconv.Atoi(a.Header.Get("Retry-After")); err == nil && s > 0 && s < int(maxWait/time.Second) {
			o.retryAfter = time.Duration(s) * time.Second
		}
	default:
		o.kind = Refused
	}
	o.err = fmt.Errorf("outbox: entry %d: %s %s was answered %d %s", e.ID, e.Method, receiverOf(e.URL), a.Status, http.StatusText(a.Status))
	if isProblem && p.Detail != "" {
		o.err = fmt.Errorf("%w: %.*s", o.err, maxDetail, hide(hideHeader(p.Detail, e.Header), e.URL))
	}
	return o
}

func success(status int) bool { return status >= 200 && status < 300 }

// maxAnswerHeader limits the headers of an answer. They stay in memory as long as its body.
const maxAnswerHeader = 128 << 10 // bytes

// newClient returns a copy of given, or a client of our own. It follows no redirects, so that an
// entry goes only to its own URL.
func newClient(given *http.Client, concurrency int) *http.Client {
	c := &http.Client{}
	if given != nil {
		*c = *given
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t = t.Clone()
		t.MaxIdleConns = 0 // as many as there are hosts
		t.MaxIdleConnsPerHost = max(concurrency, 64)
		t.MaxResponseHeaderBytes = maxAnswerHeader
		c.Transport = t
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}
