package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/epoch"
)

// world is what a handler under test has beside its transaction.
type world struct {
	testing.TB
	other db                  // its own connection
	calls *consumertest.Calls // another system
	url   string              // its address
}

// handler makes handlers, with memory of their own.
type handler struct {
	name  string
	makes func(w world) handlers
	cause string // how the report begins to name it, or one of two with a | between them
	only  string // the database; "": both
	o     consumertest.Options
}

func each(f func(ctx context.Context, tx db, m consumer.Message, e epoch.Epoch) error) handlers {
	return handlers{each: f}
}

func item(m consumer.Message) string { return string(m.Value) }
func place(m consumer.Message) int64 { return int64(m.Partition.Number)*1000 + int64(m.Offset) }

// sell writes a sale, as all of them do somewhere.
func sell(ctx context.Context, tx db, m consumer.Message, note any) error {
	_, err := tx.exec(ctx, `INSERT INTO sales (item, place, note) VALUES ($1, $2, $3)`, item(m), place(m), note)
	return err
}

func take(ctx context.Context, tx db, m consumer.Message) error {
	_, err := tx.exec(ctx, `UPDATE stock SET present = present - 1 WHERE item = $1`, item(m))
	return err
}

var faults = []handler{
	{name: "reads the clock", cause: "a clock", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, time.Now().Format(time.RFC3339Nano))
		})
	}},
	{name: "reads the clock in a number", cause: "a clock", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, fmt.Sprint("due ", time.Now().UnixNano()))
		})
	}},
	{name: "reads the clock to the day", cause: "a clock", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, "sold on "+time.Now().Format(time.DateOnly))
		})
	}},
	{name: "draws a random number", cause: "random numbers", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, fmt.Sprintf("%016x", rand.Uint64()))
		})
	}},
	{name: "has the database draw a random number", cause: "random numbers", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO sales (item, place, note) VALUES ($1, $2, CAST(random() AS TEXT))`, item(m), place(m))
			return err
		})
	}},
	{name: "counts in memory", cause: "a counter", makes: func(world) handlers {
		n := 0
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n++
			return sell(ctx, tx, m, fmt.Sprint(n))
		})
	}},
	{name: "remembers what it has seen", cause: "memory", makes: func(world) handlers {
		seen := map[int64]bool{}
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if seen[place(m)] {
				return nil
			}
			seen[place(m)] = true
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "remembers which rows exist", cause: "memory", makes: func(world) handlers {
		known := map[string]bool{}
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if !known[item(m)] {
				known[item(m)] = true
				if _, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, 0)`, item(m)); err != nil {
					return err
				}
			}
			_, err := tx.exec(ctx, `UPDATE totals SET n = n + 1 WHERE name = $1`, item(m))
			return err
		})
	}},
	{name: "writes once a process", cause: "memory", makes: func(world) handlers {
		var once sync.Once
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) (err error) {
			once.Do(func() { _, err = tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ('all', 0)`) })
			return errors.Join(err, sell(ctx, tx, m, nil))
		})
	}},
	{name: "collects messages and writes five at a time", cause: "memory", makes: func(world) handlers {
		var waiting []consumer.Message
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if waiting = append(waiting, m); len(waiting) < 5 {
				return nil
			}
			ms := waiting
			waiting = nil
			for _, m := range ms {
				if err := sell(ctx, tx, m, nil); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "resumes after the statement that it has reached", cause: "memory", makes: func(world) handlers {
		taken := map[int64]bool{}
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if !taken[place(m)] {
				if err := take(ctx, tx, m); err != nil {
					return err
				}
				taken[place(m)] = true
			}
			err := sell(ctx, tx, m, nil)
			if err == nil {
				delete(taken, place(m))
			}
			return err
		})
	}},
	{name: "gives up at its third attempt", cause: "memory", makes: func(world) handlers {
		attempts := map[int64]int{}
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if attempts[place(m)]++; attempts[place(m)] > 3 {
				return nil
			}
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "writes its log on another connection", cause: "a write outside", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			w.other.must(ctx, `INSERT INTO changes (item) VALUES ($1)`, item(m))
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "sets a value on another connection", cause: "a write outside", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			w.other.must(ctx, `UPDATE stock SET price = $1 WHERE item = 'lamp'`, place(m)+50)
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "waits for itself on another connection", cause: "another connection|a write outside", o: consumertest.Options{Timeout: 2 * time.Second}, makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if err := take(ctx, tx, m); err != nil {
				return err
			}
			_, err := w.other.exec(ctx, `UPDATE stock SET price = price + 1 WHERE item = $1`, item(m))
			return err
		})
	}},
	{name: "reads on another connection what it writes", cause: "that the handler counts or combines", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n, err := w.other.one(ctx, `SELECT present FROM stock WHERE item = $1`, item(m))
			if err != nil {
				return err
			}
			_, err = tx.exec(ctx, `UPDATE stock SET present = $1 WHERE item = $2`, n-1, item(m))
			return err
		})
	}},
	{name: "writes a row for each call of its batch", cause: "that the handler counts or combines", makes: func(world) handlers {
		return handlers{batch: func(ctx context.Context, tx db, ms []consumer.Message) error {
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, $2)`, fmt.Sprint("batch at ", place(ms[0])), len(ms))
			return err
		}}
	}},
	{name: "applies the last message of a batch only", cause: "that the handler counts or combines", makes: func(world) handlers {
		return handlers{batch: func(ctx context.Context, tx db, ms []consumer.Message) error {
			return sell(ctx, tx, ms[len(ms)-1], nil)
		}}
	}},
	{name: "ranges over a map", cause: "the order of a Go map", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			line := 0
			for part := range map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7} {
				line++
				if _, err := tx.exec(ctx, `INSERT INTO changes (item, was) VALUES ($1, $2)`, item(m)+part, line); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "makes an id of the epoch", cause: "the epoch", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, e epoch.Epoch) error {
			return sell(ctx, tx, m, fmt.Sprintf("%d-%d", e, place(m)))
		})
	}},
	{name: "skips what comes under a later epoch", cause: "the epoch", makes: func(world) handlers {
		var first epoch.Epoch
		return each(func(ctx context.Context, tx db, m consumer.Message, e epoch.Epoch) error {
			if first == 0 {
				first = e
			}
			if e != first && place(m) > 3 {
				return sell(ctx, tx, m, "late")
			}
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "calls without a key", cause: "a call of another system", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(post(ctx, w.url, ""), sell(ctx, tx, m, nil))
		})
	}},
	{name: "calls with a random key", cause: "a call of another system", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(post(ctx, w.url, fmt.Sprint(rand.Uint64())), sell(ctx, tx, m, nil))
		})
	}},
	{name: "has an OnFailure that reads the clock", cause: "a clock", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(ctx context.Context, tx db, m consumer.Message) error {
				return sell(ctx, tx, m, "failed at "+time.Now().String())
			}}
	}},
	{name: "has an OnFailure that writes elsewhere", cause: "a write outside", makes: func(w world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(ctx context.Context, _ db, m consumer.Message) error {
				w.other.must(ctx, `INSERT INTO changes (item) VALUES ($1)`, item(m))
				return nil
			}}
	}},
	{name: "has an OnFailure that calls with a random key", cause: "a call of another system", makes: func(w world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(ctx context.Context, _ db, _ consumer.Message) error {
				return post(ctx, w.url, fmt.Sprint(rand.Uint64()))
			}}
	}},
	{name: "has an OnFailure that fails", cause: "OnFailure itself", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(context.Context, db, consumer.Message) error { return errors.New("no such topic") }}
	}},
	{name: "has an OnFailure that works for one message", cause: "OnFailure itself", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(ctx context.Context, tx db, m consumer.Message) error {
				_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ('failed', $1)`, place(m))
				return err
			}}
	}},
	{name: "remembers the batch that has failed", cause: "what the handler or OnFailure keeps in memory", makes: func(world) handlers {
		size := 0 // of the last batch
		return handlers{batch: func(ctx context.Context, tx db, ms []consumer.Message) error {
			for _, m := range ms {
				if err := sell(ctx, tx, m, nil); err != nil {
					return err
				}
			}
			if len(ms) > 1 {
				size = len(ms)
			}
			return nil
		}, failed: func(ctx context.Context, tx db, m consumer.Message) error {
			return sell(ctx, tx, m, fmt.Sprint("one of ", size))
		}}
	}},
	{name: "keeps its transaction", cause: "a tx that is kept", makes: func(world) handlers {
		var kept *db
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if kept == nil {
				kept = &tx
			}
			return sell(ctx, *kept, m, nil)
		})
	}},
	{name: "numbers invoices from a sequence", cause: "a counter", only: "postgres", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, nextval('sales_id_seq'))`, fmt.Sprint(place(m)))
			return err
		})
	}},
	{name: "counts the changes of its connection", cause: "a counter", only: "sqlite", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, total_changes())`, fmt.Sprint(place(m)))
			return err
		})
	}},
	{name: "adds up what a rewind applies again", cause: "writes that add up", o: consumertest.Options{Rewind: true}, makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error { return take(ctx, tx, m) })
	}},
}

func post(ctx context.Context, url, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("pay"))
	if err != nil {
		return err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// orders are the messages of all cases.
func orders() []consumer.Message {
	return consumertest.Values("chair", "table", "chair", "lamp", "chair", "lamp", "table", "lamp", "chair", "lamp", "table", "chair")
}

// report returns what a Check of the handler says.
func (h handler) report(t *testing.T, d database) string {
	t.Helper()
	w := world{TB: t, other: d.other, calls: &consumertest.Calls{}}
	server := httptest.NewServer(w.calls)
	defer server.Close()
	w.url = server.URL
	o := h.o
	o.Calls = w.calls
	if o.Timeout == 0 {
		o.Timeout = time.Minute // the machine may stall
	}
	r := &recorder{TB: t}
	d.check(r, h.makes(w), orders(), o)
	return strings.Join(r.texts, "\n")
}

func TestEachFaultIsFoundAndNamed(t *testing.T) {
	onBoth(t, faults, func(t *testing.T, h handler, report string) {
		if !regexp.MustCompile("The usual cause is (" + h.cause + ")").MatchString(report) {
			t.Errorf("the report is\n%s\nwant the cause %q", report, h.cause)
		}
	})
}

func TestNoSoundHandlerIsAccused(t *testing.T) {
	onBoth(t, sound, func(t *testing.T, _ handler, report string) {
		if report != "" {
			t.Error(report)
		}
	})
}

// onBoth judges all handlers on SQLite and, unless EPOCHFENCE_LONG is 1, some of them on PostgreSQL.
func onBoth(t *testing.T, hs []handler, judge func(t *testing.T, h handler, report string)) {
	for name, open := range map[string]func(testing.TB) database{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			for i, h := range hs {
				if h.only != "" && h.only != name || h.only == "" && name == "postgres" && i%4 > 0 && os.Getenv("EPOCHFENCE_LONG") != "1" {
					continue
				}
				t.Run(h.name, func(t *testing.T) { judge(t, h, h.report(t, d)) })
			}
		})
	}
}
