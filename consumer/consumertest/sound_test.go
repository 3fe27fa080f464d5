package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/epoch"
)

var errSoldOut = errors.New("sold out")

// sound are handlers that look suspicious.
var sound = []handler{
	{name: "inserts rows that the database numbers", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "refers to the number of the row it has inserted", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			id, err := tx.one(ctx, `INSERT INTO sales (item, place) VALUES ($1, $2) RETURNING id`, item(m), place(m))
			if err != nil {
				return err
			}
			for part := range 3 {
				if _, err := tx.exec(ctx, `INSERT INTO parts VALUES ($1, $2)`, id, part); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "adds to a value", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error { return take(ctx, tx, m) })
	}},
	{name: "reads, computes and writes", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n, err := tx.one(ctx, `SELECT present FROM stock WHERE item = $1`, item(m))
			if err != nil {
				return err
			}
			_, err = tx.exec(ctx, `UPDATE stock SET present = $1 WHERE item = $2`, n-1, item(m))
			return err
		})
	}},
	{name: "locks the row that it reads", only: "postgres", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n, err := tx.one(ctx, `SELECT present FROM stock WHERE item = $1 FOR UPDATE`, item(m))
			if err != nil {
				return err
			}
			_, err = tx.exec(ctx, `UPDATE stock SET present = $1 WHERE item = $2`, n-1, item(m))
			return err
		})
	}},
	{name: "inserts or updates", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = totals.n + 1`, item(m))
			return err
		})
	}},
	{name: "deletes and inserts again", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `DELETE FROM sales WHERE item = $1`, item(m))
			return errors.Join(err, sell(ctx, tx, m, nil))
		})
	}},
	{name: "keeps a table of what it has seen", o: consumertest.Options{Rewind: true}, makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n, err := tx.exec(ctx, `INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING`, place(m))
			if err != nil || n == 0 {
				return err
			}
			return take(ctx, tx, m)
		})
	}},
	{name: "sets what a rewind sets again", o: consumertest.Options{Rewind: true}, makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `UPDATE stock SET price = $1 WHERE item = $2`, 10+len(item(m)), item(m))
			return err
		})
	}},
	{name: "has a trigger that writes", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `UPDATE stock SET price = price + 1 WHERE item = $1`, item(m))
			return err
		})
	}},
	{name: "writes the time into a column with that default", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO sales (item, place, at) VALUES ($1, $2, CURRENT_TIMESTAMP)`, item(m), place(m))
			return err
		})
	}},
	{name: "writes the time into a column that is ignored", o: consumertest.Options{Ignore: []string{"totals.note"}}, makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO totals VALUES ($1, 1, CAST(CURRENT_TIMESTAMP AS TEXT)) ON CONFLICT (name) DO UPDATE SET n = totals.n + 1`, item(m))
			return err
		})
	}},
	{name: "writes the message's time", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, m.Time.String())
		})
	}},
	{name: "writes a price with many digits", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, "4006381333931")
		})
	}},
	{name: "keeps the epoch as a token", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, e epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET n = $2`, item(m), int64(e))
			return err
		})
	}},
	{name: "ranges over a map of different rows", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			for name, n := range map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5} {
				if _, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET n = totals.n + $2`, name+item(m), n); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{name: "caches what depends on the message only", makes: func(world) handlers {
		cache := map[string]string{}
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if cache[item(m)] == "" {
				cache[item(m)] = strings.ToUpper(item(m))
			}
			return sell(ctx, tx, m, cache[item(m)])
		})
	}},
	{name: "counts its calls for metrics", makes: func(world) handlers {
		var calls atomic.Int64
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			calls.Add(1)
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "reads its configuration on another connection", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			price, err := w.other.one(ctx, `SELECT price FROM stock WHERE item = $1`, item(m))
			return errors.Join(err, sell(ctx, tx, m, fmt.Sprint(price)))
		})
	}},
	{name: "calls with a key of the message", makes: func(w world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return errors.Join(post(ctx, w.url, fmt.Sprint("sale ", place(m))), sell(ctx, tx, m, nil))
		})
	}},
	{name: "has an OnFailure that calls with a key of the message", makes: func(w world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			return sell(ctx, tx, m, nil)
		},
			failed: func(ctx context.Context, tx db, m consumer.Message) error {
				return errors.Join(post(ctx, w.url, fmt.Sprint("failed ", place(m))), sell(ctx, tx, m, "failed"))
			}}
	}},
	{name: "fails for some messages", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			n, err := tx.exec(ctx, `UPDATE stock SET present = present - 1 WHERE item = $1 AND present > 0`, item(m))
			if err == nil && n == 0 {
				return consumer.Permanent(errSoldOut)
			}
			return err
		}, failed: func(ctx context.Context, tx db, m consumer.Message) error { return sell(ctx, tx, m, "sold out") }}
	}},
	{name: "fails for all messages of a rewind", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.exec(ctx, `INSERT INTO seen VALUES ($1)`, place(m))
			return err
		}, failed: func(context.Context, db, consumer.Message) error { return nil }}
	}},
	{name: "panics for some messages", makes: func(world) handlers {
		return handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if item(m) == "lamp" {
				panic("no lamps")
			}
			return take(ctx, tx, m)
		}, failed: func(ctx context.Context, tx db, m consumer.Message) error { return sell(ctx, tx, m, "panicked") }}
	}},
	{name: "fails at the first use of a connection", makes: func(world) handlers {
		connected := false
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if !connected {
				connected = true
				return errors.New("not connected")
			}
			return sell(ctx, tx, m, nil)
		})
	}},
	{name: "sums up a batch", makes: func(world) handlers {
		return handlers{batch: func(ctx context.Context, tx db, ms []consumer.Message) error {
			sums := map[string]int{}
			for _, m := range ms {
				sums[item(m)]++
			}
			for _, name := range slices.Sorted(maps.Keys(sums)) {
				if _, err := tx.exec(ctx, `UPDATE stock SET present = present - $1 WHERE item = $2`, sums[name], name); err != nil {
					return err
				}
			}
			return nil
		}}
	}},
	{name: "changes nothing for some messages", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			if item(m) != "chair" {
				return nil
			}
			return take(ctx, tx, m)
		})
	}},
	{name: "sends what is applied alone", makes: func(world) handlers {
		return each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
			for _, text := range []string{`SAVEPOINT a`, `UPDATE stock SET present = 0`, `ROLLBACK TO SAVEPOINT a`} {
				if _, err := tx.exec(ctx, text); err != nil {
					return err
				}
			}
			return take(ctx, tx, m)
		})
	}},
}
