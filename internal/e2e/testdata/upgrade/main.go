// Command upgrade is a user's program for the play of an upgrade, in ../../upgrade_unix_test.go. It uses
// only what users may import, and is compiled against yesterday's tree and against today's. Its first
// argument says what it does: migrate, work, receive, or report. Operators act through the command
// epochfence. The test decides what is exact; the program notes what it does, in the transactions in which
// it does it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// spec says where everything is. It comes as JSON in UPGRADE.
type spec struct {
	Name         string // of the process
	Sink         string // postgres, sqlite or items
	Database     string // a URL, or the path of a file
	Kafka        string // its address; empty: the messages come from NATS
	NATS         string // its URL
	Topic        string // or stream, whose subjects are TOPIC.0 to TOPIC.5
	Receiver     string // host:port
	ReceiverFile string // its SQLite file
	Hold         string // a file: while it is there, only runs that an operator has requested begin
}

const (
	jobs       = "jobs"
	partitions = 6
	term       = 3 * time.Second // of leases
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	var s spec
	err := json.Unmarshal([]byte(os.Getenv("UPGRADE")), &s)
	if err == nil {
		switch {
		case os.Args[1] == "receive":
			err = s.receive(ctx)
		case s.Sink == "postgres":
			err = onPostgres(ctx, s)
		case s.Sink == "sqlite":
			err = onSQLite(ctx, s)
		default:
			err = onItems(ctx, s)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ended with an error:", err)
		os.Exit(1)
	}
}

// world is a sink and what goes with it.
type world[TX any] struct {
	spec
	sink       epoch.Sink[TX]
	guarantee  epoch.Guarantee
	operator   operate.Operator
	outbox     outbox.Store[TX]
	leases     cas.Store // of the jobs
	deadLetter consumer.FailureHandler[TX]

	// note writes an effect: of which kind, in which list, and what. notes reads the lists.
	note  func(ctx context.Context, tx TX, m epoch.Message, kind, list, what string) error
	notes func(ctx context.Context) (map[string][]string, error)
}

func (w *world[TX]) do(ctx context.Context) error {
	if os.Args[1] == "work" {
		return w.work(ctx)
	}
	return w.report(ctx)
}

// work consumes the messages, relays the outbox, and runs the jobs.
func (w *world[TX]) work(ctx context.Context) error {
	source, err := w.source()
	if err != nil {
		return err
	}
	box, err := outbox.New(w.outbox, outbox.Options[TX]{
		RetryMax: 2 * time.Second,
		OnAnswer: func(ctx context.Context, tx TX, e outbox.Sent, _ outbox.Answer) error {
			return w.note(ctx, tx, e.Message(), "answer", strconv.Itoa(int(e.Partition.Number)), e.IdempotencyKey)
		},
	})
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		kind, number, offset := "message", strconv.Itoa(int(m.Partition.Number)), strconv.Itoa(int(m.Offset))
		if m.Replay != 0 {
			kind = "replay"
		} else if value := string(m.Value); value == "later" {
			return retryLater()
		} else if value != "order" {
			return consumer.Permanent(errors.New("it is " + value))
		}
		time.Sleep(2 * time.Millisecond) // as long as a statement far away, so that incidents find open transactions
		if err := w.note(ctx, tx, m, kind, number, offset); err != nil || m.Offset%5 != 0 {
			return err
		}
		scope := fmt.Sprintf("account/%s/%d", number, m.Offset%3)
		return box.Add(ctx, tx, m, outbox.Entry{Key: scope, Scope: scope, IdempotencyKey: number + "-" + offset, URL: "http://" + w.Receiver})
	}
	onFailure := func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch, cause error) error {
		if string(m.Value) == "stone" { // no dead letter: the partition halts until an operator skips it
			return cause
		}
		return w.deadLetter(ctx, tx, m, e, cause)
	}
	requested := func(t schedule.Tick) string { return map[bool]string{true: "!"}[t.Requested] }
	count := func(ctx context.Context, tx TX, t schedule.Tick, _ epoch.Epoch) error {
		if err := w.held(t); err != nil {
			return err
		}
		return w.note(ctx, tx, t.Message, "tick", t.Job, strconv.Itoa(int(t.At.Unix()))+requested(t))
	}
	step := func(ctx context.Context, tx TX, t schedule.Tick, _ epoch.Epoch) (bool, error) {
		if err := w.held(t); err != nil || t.Step >= 3 { // 4: the process ended after the last step
			return err == nil, err
		}
		return false, w.note(ctx, tx, t.Message, "step", t.Job, fmt.Sprintf("%d/%d%s", t.At.Unix(), t.Step, requested(t)))
	}
	every := schedule.Job[TX]{Cron: "@every 1s", CatchUp: schedule.CatchUpAll, Overrun: schedule.OverrunQueue}
	counts, steps := every, every
	counts.Name, counts.Do, steps.Name, steps.Step = "count", count, "steps", step
	clock, err := schedule.New(schedule.Options{Store: w.leases, Group: jobs, LeaseTTL: term, Name: w.Name}, counts, steps)
	if err != nil {
		return err
	}
	options := consumer.Options{Guarantee: w.guarantee, MaxBatch: 8, Committers: 2, RetryMax: time.Second, HaltMax: time.Second}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		return consumer.Run(ctx, source, w.sink, consumer.Each(handle).OnFailure(onFailure).Background(box.Relay), options)
	})
	both.Go(func() error {
		options := options
		options.MaxBatch = 1
		return consumer.Run(ctx, clock, w.sink, clock.Handlers(), options)
	})
	return both.Wait()
}

// held refuses to begin a tick while the file Hold is there. Another file has the name of the tick then.
func (s spec) held(t schedule.Tick) error {
	if t.Requested || t.Step > 0 {
		return nil
	}
	switch _, err := os.Stat(s.Hold); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	err := os.WriteFile(fmt.Sprintf("%s-%s-%d", s.Hold, t.Job, t.Message.Offset), nil, 0o600)
	return cmp.Or(err, fmt.Errorf("the jobs are held: %w", epoch.ErrTransient))
}

func (w *world[TX]) source() (consumer.Source, error) {
	if w.Kafka != "" {
		return kafkasource.New(kafkasource.Options{Group: w.Topic, Topics: []string{w.Topic}, Client: []kgo.Opt{
			kgo.SeedBrokers(w.Kafka), kgo.ClientID(w.Name), kgo.Balancers(kgo.CooperativeStickyBalancer()),
			kgo.SessionTimeout(term), kgo.HeartbeatInterval(term / 10), kgo.RebalanceTimeout(10 * time.Second),
		}})
	}
	js, err := connect(w.NATS)
	if err != nil {
		return nil, err
	}
	stream := natssource.Stream{Name: w.Topic}
	for p := range partitions {
		stream.Filters = append(stream.Filters, fmt.Sprintf("%s.%d", w.Topic, p))
	}
	return natssource.New(natssource.Options{Group: w.Topic, JetStream: js, Streams: []natssource.Stream{stream}, LeaseTTL: term, Name: w.Name})
}

// report prints what there is, for the audit.
func (w *world[TX]) report(ctx context.Context) error {
	db, err := openSQLite(w.ReceiverFile)
	if err != nil {
		return err
	}
	defer db.Close()
	received, receiving := rows(ctx, db)
	notes, noting := w.notes(ctx)
	maps.Copy(notes, received)
	fences, reading := w.operator.Partitions(ctx, operate.Filter{})
	waiting, deferring := deferred(ctx, w.operator)
	letters, lettering := w.operator.DeadLetters(ctx, operate.DeadLetterQuery{Limit: 1 << 16})
	entries, listing := w.operator.OutboxEntries(ctx, operate.OutboxQuery{Limit: 1 << 16})
	decisions, recalling := w.operator.History(ctx, operate.HistoryQuery{Limit: 1 << 16, Kinds: []operate.DecisionKind{
		operate.DecidedRewind, operate.DecidedSkip, operate.DecidedPause, operate.DecidedResume, operate.DecidedEvict, operate.DecidedRun,
		operate.DecidedReplayRequest, operate.DecidedDiscard, operate.DecidedOutboxRetry, operate.DecidedOutboxDiscard,
	}})
	printing := json.NewEncoder(os.Stdout).Encode(map[string]any{
		"Notes": notes, "Fences": fences, "Letters": letters, "Deferred": waiting, "Entries": entries, "Decisions": decisions,
	})
	return errors.Join(receiving, noting, reading, deferring, lettering, listing, recalling, printing)
}

// receive serves the receiver, whose first answers to some requests are that it is busy, and whose answers
// to others are always that.
func (s spec) receive(ctx context.Context) error {
	db, err := openSQLite(s.ReceiverFile)
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := httpfence.OpenSQL(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	busy := map[string]int{}
	server := &http.Server{Addr: s.Receiver, ReadHeaderTimeout: time.Minute, Handler: httpfence.Handler(store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := httpfence.CallOf(r.Context())
		mu.Lock()
		busy[c.Key]++
		first := busy[c.Key] < 4
		mu.Unlock()
		if first && strings.HasSuffix(c.Key, "25") || stuck(c.Key) {
			http.Error(w, "busy", http.StatusServiceUnavailable)
		} else if _, err := httpfence.Tx(r.Context()).ExecContext(r.Context(), insert, "request", "all", c.Key); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), httpfence.Options{})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stuck reports whether only an operator ends a request, who discards it. The test has the same rule.
func stuck(key string) bool {
	_, offset, _ := strings.Cut(key, "-")
	n, err := strconv.Atoi(offset)
	return err == nil && n%500 == 75
}
