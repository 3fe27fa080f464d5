package show

import (
	"net/http"
	"strings"
)

// Sending is Base with the points [BeforeSend] and [Answered]. A request that was stopped before it is
// sent even if its context has ended meanwhile, so that only the receiver can refuse it. Its subject is
// its idempotency key.
type Sending struct {
	Base  http.RoundTripper
	Stage *Stage
}

// RoundTrip sends a request.
func (s Sending) RoundTrip(r *http.Request) (*http.Response, error) {
	cue := s.Stage.Cue(strings.Trim(r.Header.Get("Idempotency-Key"), `"`), BeforeSend, Answered)
	r = r.WithContext(cue.Context(r.Context()))
	cue.Reach(BeforeSend)
	answer, err := s.Base.RoundTrip(r)
	switch {
	case err != nil:
		cue.end(Failed)
	case answer.StatusCode == http.StatusPreconditionFailed:
		cue.end(Refused)
	default:
		cue.end(answered)
		cue.Reach(Answered)
	}
	return answer, err
}
