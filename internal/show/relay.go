package show

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/epochfence/epochfence/consumer"
)

// Relaying returns relay with the points of stage in its requests, which
// [Sending] has put around the client. It is for consumer.Handlers.Background.
func Relaying[TX any](relay func(context.Context, consumer.Background[TX])) func(context.Context, consumer.Background[TX]) {
	return func(ctx context.Context, b consumer.Background[TX]) {
		relay(context.WithValue(ctx, partitionKey{}, b.Partition().Number), b)
	}
}

type partitionKey struct{}

// Sending returns base with the point [BeforeSend] in it. A request that is
// stopped there leaves whatever has become of its context meanwhile, so that the
// receiver gets it, and nothing else stands in its way. What it is about is its
// idempotency key.
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

// sent reports what became of a request, if it is one that was stopped, or
// refused.
func (c *Cue) sent(kind string) {
	if c.stopped || kind == reportRefused {
		c.tell(report{Kind: kind})
	}
	c.keep()
}

// answered notes that a request of the partition was answered. The next
// transaction beside its messages is to record that.
func (s *Stage) answered(partition int32, subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[partition] = answers{subject, s.answers[partition].n + 1}
}

// answers are those of one partition that no transaction beside its messages has
// been begun for.
type answers struct {
	last string // what the last one is about
	n    int
}

// takeAnswers takes them.
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
