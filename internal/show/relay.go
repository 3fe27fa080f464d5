package show

import (
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
	cue := s.stage.Cue(subject, BeforeSend)
	defer cue.keep()
	r = r.WithContext(cue.Context(r.Context()))
	cue.Reach(BeforeSend)
	answer, err := s.base.RoundTrip(r)
	switch {
	case err != nil:
		cue.end(Failed)
	case answer.StatusCode == http.StatusPreconditionFailed:
		cue.end(Refused)
	default:
		s.stage.mu.Lock()
		s.stage.answers[partition] = subject // the next transaction of the relay records it
		s.stage.mu.Unlock()
		cue.end(answered)
	}
	return answer, err
}

func (s *Stage) takeAnswer(partition int32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.answers, partition)
	return s.answers[partition]
}
