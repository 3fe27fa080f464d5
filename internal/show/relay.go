package show

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/epochfence/epochfence/consumer"
)

// Relaying returns relay with the points of stage in its requests, for
// consumer.Handlers.Background. [Sending] must wrap the client.
func Relaying[TX any](relay func(context.Context, consumer.Background[TX])) func(context.Context, consumer.Background[TX]) {
	return func(ctx context.Context, b consumer.Background[TX]) {
		relay(context.WithValue(ctx, partitionKey{}, b.Partition().Number), b)
	}
}

type partitionKey struct{}

// Sending returns base with the point [BeforeSend] in it. A request that was stopped there is sent
// even if its context has ended meanwhile, so that only the receiver can refuse it. Its subject is
// its idempotency key.
func Sending(base http.RoundTripper, stage *Stage) http.RoundTripper {
	return &sending{base, stage}
}

type sending struct {
	base  http.RoundTripper
	stage *Stage
}

func (s *sending) RoundTrip(r *http.Request) (*http.Response, error) {
	partition, ok := r.Context().Value(partitionKey{}).(int32)
	if !ok {
		return s.base.RoundTrip(r)
	}
	subject := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	cue := s.stage.Cue(Work{{Partition: partition}}, BeforeSend).About(subject)
	r = r.WithContext(cue.Context(r.Context()))
	cue.Reach(BeforeSend)
	answer, err := s.base.RoundTrip(r)
	switch {
	case err != nil:
		cue.sent(reportFailed)
	case answer.StatusCode == http.StatusPreconditionFailed:
		cue.sent(reportRefused)
	default:
		s.stage.answered(partition, subject)
		cue.sent(reportSent)
	}
	return answer, err
}

// sent reports the outcome of a request that was stopped or refused.
func (c *Cue) sent(kind string) {
	if c.stopped || kind == reportRefused {
		c.tell(report{Kind: kind})
	}
	c.keep()
}

// answered notes an answer to a request of the partition. The next transaction of the relay records
// the answer.
func (s *Stage) answered(partition int32, subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[partition] = answers{subject, s.answers[partition].n + 1}
}

type answers struct {
	last string // the subject of the last one
	n    int
}

func (s *Stage) takeAnswers(w Work) (taken answers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range w {
		a := s.answers[span.Partition]
		delete(s.answers, span.Partition)
		taken = answers{cmp.Or(a.last, taken.last), a.n + taken.n}
	}
	return taken
}
