package cassinktest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/casoutbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// receiver has an effect for each entry, behind the fence of package httpfence.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	effects []string
}

func (w *world) receives() *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.effects = append(r.effects, string(body))
	}), httpfence.Options{Logger: slog.New(slog.DiscardHandler)}))
	w.Cleanup(r.Close)
	return r
}

// posting returns handlers that add an entry for each message, and record its answer.
func (w *world) posting(r *receiver) consumer.Handlers[*cassink.Tx] {
	box, err := outbox.New(casoutbox.Store{}, outbox.Options[*cassink.Tx]{
		Client: r.Client(), RetryMin: 5 * time.Millisecond, RetryMax: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		OnAnswer: func(ctx context.Context, tx *cassink.Tx, sent outbox.Sent, _ outbox.Answer) error {
			_, err := tx.Update(ctx, sent.Message(), w.prefix+"/answers", adds(string(sent.Body)))
			return err
		},
	})
	w.NoError(err)
	return consumer.Each(func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if err := w.apply(ctx, tx, m); err != nil {
			return err
		}
		partition := strconv.Itoa(int(m.Partition.Number))
		e := outbox.Entry{Key: partition, Scope: partition, IdempotencyKey: string(m.Value), URL: r.URL, Body: m.Value}
		if err := box.Add(ctx, tx, m, e); err != nil {
			return err
		}
		return w.fails(m)
	}).Background(box.Relay)
}

func posts(w *world) {
	r := w.receives()
	f := &freezer{Store: w.rig.Open(w, direct), frozen: make(chan struct{}), thawed: make(chan struct{})}
	f.left.Store(14)
	thaw := sync.OnceFunc(func() { close(f.thawed) })
	defer thaw()
	w.sends(8)
	a := w.starts("a", f, w.posting(r))
	select {
	case <-f.frozen:
	case <-w.ctx.Done():
		w.Fatal("it was not frozen")
	}
	a.Freeze()
	w.starts("b", w.store, w.posting(r))
	a.Group().Expire(a)
	w.sends(4)
	w.drains()
	thaw()
	a.Thaw()
	w.sends(4)
	w.drains()
	w.until("all entries are sent", func() error {
		left, err := w.sink.Operator().OutboxEntries(w.ctx, operate.OutboxQuery{})
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left", len(left))
		}
		return err
	})
	w.exact()
	var want []string
	for n, size := range w.size {
		var ofPartition []string
		for offset := range size {
			ofPartition = append(ofPartition, fmt.Sprintf("%d:%d", n, offset))
		}
		r.mu.Lock()
		came := slices.DeleteFunc(slices.Clone(r.effects), func(s string) bool { return !strings.HasPrefix(s, fmt.Sprint(n, ":")) })
		r.mu.Unlock()
		w.Wantf(slices.Equal(came, ofPartition), "the receiver has %v, want %v", came, ofPartition)
		want = append(want, ofPartition...)
	}
	answers, err := guard.Read(w.ctx, w.store, w.prefix+"/answers")
	w.NoError(err)
	recorded := strings.Fields(string(answers.Value))
	slices.Sort(recorded)
	if slices.Sort(want); !slices.Equal(recorded, want) {
		w.Errorf("recorded %v, want %v", recorded, want)
	}
}
