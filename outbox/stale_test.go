package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

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

// Whether the receiver or the sink is wrong is told when the sink has answered,
// and not before.
func TestWhoIsRightAboutAStaleAnswerIsAskedUntilTheSinkAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer error
		want   string
		above  []epoch.Epoch
	}{
		"the receiver": {&epoch.StaleError{Partition: orders}, "was superseded", nil},
		"the sink":     {nil, "has seen a higher epoch, the entries", []epoch.Epoch{9}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			store := httpfence.NewMemory()
			url := newServer(t, httpfence.Handler(store, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{}))
			r := newRig(t, fast, ok)
			box, err := outbox.New(table{}, outbox.Options[*tx]{
				RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond,
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
			run := r.relay(8)
			r.over(run)
			if text := log.String(); !strings.Contains(text, c.want) || r.db.begun != before+5 || !slices.Equal(run.above, c.above) {
				t.Errorf("after %d transactions the partition is to be claimed above %v, and the log says\n%s", r.db.begun-before, run.above, text)
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
