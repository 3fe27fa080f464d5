package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Options say how a [Box] works. The zero Options work.
type Options[TX any] struct {
	// Client sends. Its redirects are not followed, whatever it says. Nil means one
	// that keeps as many connections to a host as Concurrency allows.
	Client *http.Client

	// Concurrency is how many requests of one partition are under way at a
	// time. Zero means 8.
	Concurrency int

	// RequestTimeout bounds one request, until its answer has been read. Zero
	// means 5 s. The end of a claim ends its requests at once.
	RequestTimeout time.Duration

	// RetryMin and RetryMax bound the wait before an entry is tried again, which
	// doubles, with jitter. Zero means 100 ms and 30 s. Only entries of
	// the same Key wait with it.
	RetryMin, RetryMax time.Duration

	// MaxBody bounds the Body of an entry, in bytes: Add refuses a longer one.
	// Zero means 256 KiB.
	MaxBody int

	// MaxAnswer is how much of the body of an answer is kept for OnAnswer and
	// OnRefused, in bytes. Zero means 64 KiB.
	MaxAnswer int

	// OnAnswer, if it is set, is called for each entry that was answered with a
	// 2xx, in the fenced transaction that deletes it. If it returns an error,
	// the entry stays and OnAnswer is tried again later, with the same answer,
	// or with a new one under the next claim. It may add entries, as a handler does, and so
	// may OnRefused.
	OnAnswer func(ctx context.Context, tx TX, e Sent, a Answer) error

	// OnRefused decides over an entry that the receiver has refused for good: by
	// any status but 2xx, and but those that [httpfence.Retryable] names. It runs
	// in the fenced transaction that deletes the entry: what it writes is how the
	// refusal is remembered. If it returns an error, or is nil, the entry stays,
	// is reported, and is sent again every RetryMax.
	OnRefused func(ctx context.Context, tx TX, e Sent, a Answer) error

	// Observe, if it is set, is told what becomes of each attempt. It must not
	// block. It is called for several partitions at once, for one of them one at a
	// time, though beside its OnAnswer and OnRefused.
	Observe func(Event)

	// ObserveBacklog, if it is set, is told how many entries of a partition wait, each
	// time the relay has sent some, though no more than once in 10 s while any are
	// left. It must not block. What it costs is that they are counted, up to 10,000 of
	// them.
	ObserveBacklog func(Backlog)

	// Logger gets a line when something begins to fail, now and then while it does, and
	// when it is over.
	// Nil means [slog.Default].
	Logger *slog.Logger
}

// Kind is what an [Event] tells of.
type Kind int

// The kinds.
const (
	// Delivered: the answer was a 2xx, and the entry is deleted.
	Delivered Kind = iota

	// Refused: the answer was a refusal for good. The entry is deleted if Err
	// is nil.
	Refused

	// Retrying: there was no answer, one that asks for another try, or OnAnswer
	// failed. The entry is tried again.
	Retrying

	// Fenced: the receiver has seen a higher epoch in the entry's scope. If the claim
	// holds all the same, the partition is claimed again above that.
	Fenced
)

func (k Kind) String() string {
	names := [...]string{"delivered", "refused", "retrying", "fenced"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return names[k]
}

// Event tells what became of an attempt to deliver an entry.
type Event struct {
	Kind Kind
	Sent
	Status  int           // of the answer, 0 if there was none
	Highest epoch.Epoch   // that the receiver knows, if it was Fenced
	Took    time.Duration // from the request to its answer; zero for what OnAnswer or OnRefused did
	Err     error         // why, unless it was delivered
}

// Backlog is what waits in the outbox for one partition.
type Backlog struct {
	Partition epoch.Partition
	Entries   int
	More      bool      // Entries are as many as are counted, and there are more
	Oldest    time.Time // when the first of them was added; zero without entries
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
	number("MaxBody", &o.MaxBody, 256<<10, 64<<20)
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
