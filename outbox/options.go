package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the options of a Box with their defaults and limits, and what its events report.
// relay.go and settlement.go send the events.

// Options configure a [Box]. The zero value works.
type Options[TX any] struct {
	// Client sends the requests. Redirects are not followed. Set it for a proxy, client
	// certificates or traces. Defaults to a client that keeps 64 idle connections to a host, or
	// Concurrency if that is more.
	Client *http.Client

	// Concurrency is the number of requests of one partition that may be under way at a time. Raise
	// it for a slow receiver and many Keys. Defaults to 8.
	Concurrency int

	// RequestTimeout limits one request, until its answer has been read. The end of a claim ends
	// its requests at once. Raise it for a receiver that needs longer to answer. Defaults to 5 s.
	RequestTimeout time.Duration

	// RetryMin and RetryMax limit the wait before an entry is tried again. The wait doubles, with
	// jitter. Only entries of the same Key wait with it. Lower RetryMax so that entries are sent
	// sooner after a receiver has recovered. They default to 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// MaxAnswer limits the part of an answer's body that OnAnswer and OnRefused get, in bytes.
	// Raise it if OnAnswer needs more of the body. Defaults to 64 KiB.
	MaxAnswer int

	// OnAnswer is called for each entry that was answered with a 2xx status, in the fenced
	// transaction that deletes the entry. If it returns an error, the entry stays, and OnAnswer is
	// tried again with the same answer, or with a new one under the next claim. OnAnswer and
	// OnRefused may add entries for the Partition of e; see [Box.Add]. Optional.
	OnAnswer func(ctx context.Context, tx TX, e Sent, a Answer) error

	// OnRefused is called for each entry that was answered with a status that is neither 2xx nor
	// retryable ([httpfence.Retryable]), nor a 412 for a stale epoch, in the fenced transaction that
	// deletes the entry. If it returns an error, the entry stays, and OnRefused is tried again as OnAnswer is. If it is nil,
	// the entry stays, is reported, and is sent again every RetryMax.
	OnRefused func(ctx context.Context, tx TX, e Sent, a Answer) error

	// Observe, if set, is called with each [Event]. It must not block. Calls for one partition do
	// not overlap with each other, and may overlap with its OnAnswer and OnRefused. Set it for
	// metrics: operate/stats has ObserveOutbox.
	Observe func(Event)

	// ObserveBacklog, if set, is called with the number of waiting entries of a partition: at most
	// once in 10 s while any are left, and when none is left. It must not block. Entries are
	// counted up to 10,000. Calls for one partition do not overlap with each other. Set it for
	// metrics: operate/stats has ObserveBacklog.
	ObserveBacklog func(Backlog)

	// Logger receives a line when a failure begins, some lines while it lasts, and, if it was a
	// receiver's, a line when it is over. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Kind is the kind of an [Event].
type Kind int

// The kinds.
const (
	// Delivered means that the answer was a 2xx status, and the entry is deleted.
	Delivered Kind = iota

	// Refused means that the receiver refused the entry for good. The entry is deleted if Err is
	// nil.
	Refused

	// Retrying means that the entry is tried again: there was no answer, the answer was retryable,
	// or OnAnswer or OnRefused failed.
	Retrying

	// Fenced means that the receiver has seen a higher epoch in the entry's scope. If our claim
	// still holds, the process claims the partition again above that epoch.
	Fenced
)

func (k Kind) String() string {
	names := [...]string{"delivered", "refused", "retrying", "fenced"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return names[k]
}

// Event reports an attempt to deliver an entry.
type Event struct {
	Kind Kind
	Sent
	Status  int           // of the answer, or 0
	Highest epoch.Epoch   // that the receiver has seen, if Kind is Fenced
	Took    time.Duration // from the request to its answer; zero if OnAnswer or OnRefused failed
	Err     error         // why the entry was not delivered, or nil
}

// Backlog describes the waiting entries of one partition.
type Backlog struct {
	Partition epoch.Partition
	Entries   int
	More      bool      // there are more than Entries, which were not counted
	Oldest    time.Time // when the oldest entry was added; zero without entries
}

const maxWait = 24 * time.Hour

func (o Options[TX]) withDefaults() (Options[TX], error) {
	var err error
	number := func(name string, v *int, zero, most int) {
		if *v == 0 {
			*v = zero
		}
		if err == nil && (*v < 0 || *v > most) {
			err = fmt.Errorf("outbox: Options.%s is %d; want 0 for the default of %d, or 1 to %d", name, *v, zero, most)
		}
	}
	wait := func(name string, v *time.Duration, zero time.Duration) {
		if *v == 0 {
			*v = zero
		}
		if err == nil && (*v < 0 || *v > maxWait) {
			err = fmt.Errorf("outbox: Options.%s is %v; want 0 for the default of %v, or up to %v", name, *v, zero, maxWait)
		}
	}
	number("Concurrency", &o.Concurrency, 8, 1<<10)
	number("MaxAnswer", &o.MaxAnswer, 64<<10, 64<<20)
	wait("RequestTimeout", &o.RequestTimeout, 5*time.Second)
	zeroMin, zeroMax := 100*time.Millisecond, 30*time.Second
	if o.RetryMax > 0 {
		zeroMin = min(zeroMin, o.RetryMax)
	}
	wait("RetryMin", &o.RetryMin, zeroMin)
	wait("RetryMax", &o.RetryMax, max(zeroMax, o.RetryMin))
	if err == nil && o.RetryMin > o.RetryMax {
		err = fmt.Errorf("outbox: Options.RetryMin %v is above RetryMax %v", o.RetryMin, o.RetryMax)
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, err
}
