package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The session, 45 s by default, is that of all consumers of Kafka in these trials.
const sessionTimeout, heartbeatInterval = 6 * time.Second, time.Second

func (c config) session() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(c.Kafka), kgo.SessionTimeout(sessionTimeout), kgo.HeartbeatInterval(heartbeatInterval)}
}

func (c config) out() string { return c.ID + "_out" }

// setUpTopic makes the topic with its messages, and one for effects in Kafka.
func setUpTopic(ctx context.Context, c config) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Kafka), kgo.DefaultProduceTopic(c.ID), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.UnknownTopicRetries(-1)) // a new topic
	if err != nil {
		return err
	}
	defer client.Close()
	made, err := kadm.NewClient(client).CreateTopics(ctx, 1, 1, nil, c.ID, c.out())
	if err = errors.Join(err, made.Error()); err != nil {
		return err
	}
	var records []*kgo.Record
	for item := 1; item <= 20; item++ {
		records = append(records, kgo.StringRecord(strconv.Itoa(item)))
	}
	return errors.Join(client.ProduceSync(ctx, records...).FirstErr(), execute(ctx, c.Database, `insert into position (next) values (0)`))
}

// message handles one message. Only one of them is worth a freeze, and takes its time.
func (p *pod) message(ctx context.Context, value string, do func(context.Context, int32) error) error {
	item, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	return p.observed(ctx, value, func(ctx context.Context) error {
		if item == hard {
			if err := p.toil(ctx); err != nil {
				return err
			}
		}
		return do(ctx, int32(item))
	})
}

// applied writes the message's effect in a transaction whose last statement is last's.
func (p *pod) applied(ctx context.Context, do statement, item int32, last func(context.Context) error) error {
	if item != hard {
		p = &pod{config: p.config, db: p.db}
		p.Freeze = ""
	}
	if err := p.write(ctx, do, []int32{item}, ""); err != nil {
		return err
	}
	if last != nil {
		if err := last(ctx); err != nil {
			return fmt.Errorf("check: %w", err)
		}
	}
	return p.freeze(ctx, beforeCommit)
}

// consume handles one record after the other. After an error it begins again as a new member, at the
// offset that counts.
func (p *pod) consume(ctx context.Context, handle func(context.Context, *kgo.Client, *kgo.Record) error, opts ...kgo.Opt) error {
	opts = append(append(p.session(), kgo.ConsumerGroup(p.ID), kgo.ConsumeTopics(p.ID), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())), opts...)
	for ctx.Err() == nil {
		client, err := kgo.NewClient(opts...)
		if err != nil {
			return err
		}
		slog.Error("begins again", "after", p.poll(ctx, client, handle))
		client.CloseAllowingRebalance()
		pause(ctx, time.Second)
	}
	return nil
}

func (p *pod) poll(ctx context.Context, client *kgo.Client, handle func(context.Context, *kgo.Client, *kgo.Record) error) error {
	for {
		polled := client.PollRecords(ctx, 100)
		if err := polled.Err(); err != nil {
			return err
		}
		for _, r := range polled.Records() {
			if err := handle(ctx, client, r); err != nil {
				return err
			}
		}
		client.AllowRebalance()
	}
}

// runOffsetAfter commits each message's offset after its effect.
func runOffsetAfter(ctx context.Context, p *pod) error {
	return p.consume(ctx, func(ctx context.Context, client *kgo.Client, r *kgo.Record) error {
		return p.message(ctx, string(r.Value), func(ctx context.Context, item int32) error {
			err := pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error { return p.applied(ctx, in(tx), item, nil) })
			if err != nil {
				return err
			}
			return client.CommitRecords(ctx, r)
		})
	})
}

// runDedupe does the same, and inserts the message's id first.
func runDedupe(ctx context.Context, p *pod) error {
	return p.consume(ctx, func(ctx context.Context, client *kgo.Client, r *kgo.Record) error {
		return p.message(ctx, string(r.Value), func(ctx context.Context, item int32) error {
			if err := p.appliedOnce(ctx, item); err != nil {
				return err
			}
			return client.CommitRecords(ctx, r)
		})
	})
}

func (p *pod) appliedOnce(ctx context.Context, item int32) error {
	return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into done (id) values ($1) on conflict do nothing`, strconv.Itoa(int(item)))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return p.applied(ctx, in(tx), item, nil)
	})
}

// runOffsetReplaced has the position in the database, and does not compare it.
func runOffsetReplaced(ctx context.Context, p *pod) error {
	return p.consumeFromDatabase(ctx, func(ctx context.Context, tx pgx.Tx, offset int64) error {
		_, err := tx.Exec(ctx, `insert into position (next) values ($1) on conflict (one) do update set next = excluded.next`, offset+1)
		return err
	})
}

// runOffsetCompared advances it only from the message's own offset.
func runOffsetCompared(ctx context.Context, p *pod) error {
	return p.consumeFromDatabase(ctx, func(ctx context.Context, tx pgx.Tx, offset int64) error {
		tag, err := tx.Exec(ctx, `update position set next = $1 where next = $2`, offset+1, offset)
		if err == nil && tag.RowsAffected() == 0 {
			return errors.New("the position is another one")
		}
		return err
	})
}

func (p *pod) consumeFromDatabase(ctx context.Context, advance func(context.Context, pgx.Tx, int64) error) error {
	handle := func(ctx context.Context, _ *kgo.Client, r *kgo.Record) error {
		return p.message(ctx, string(r.Value), func(ctx context.Context, item int32) error {
			return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
				return p.applied(ctx, in(tx), item, func(ctx context.Context) error { return advance(ctx, tx, r.Offset) })
			})
		})
	}
	return p.consume(ctx, handle, kgo.AdjustFetchOffsetsFn(func(ctx context.Context, assigned map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
		for topic := range assigned {
			var next int64
			if err := p.db.QueryRow(ctx, `select next from position`).Scan(&next); err != nil {
				return nil, err
			}
			assigned[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().At(next)}
		}
		return assigned, nil
	}))
}

// runTransactions has its effects in another topic, in the transaction of the offset.
func runTransactions(ctx context.Context, p *pod) error {
	return p.transact(ctx, func(ctx context.Context, s *kgo.GroupTransactSession, item int32) error {
		if err := s.ProduceSync(ctx, &kgo.Record{Topic: p.out(), Value: []byte(strconv.Itoa(int(item)))}).FirstErr(); err != nil || item != hard {
			return err
		}
		return errors.Join(p.freeze(ctx, written), p.freeze(ctx, beforeCommit))
	})
}

// runTransactionsAndDatabase has its effects in PostgreSQL, before the transaction of the offset commits.
func runTransactionsAndDatabase(ctx context.Context, p *pod) error {
	return p.transact(ctx, func(ctx context.Context, _ *kgo.GroupTransactSession, item int32) error {
		return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error { return p.applied(ctx, in(tx), item, nil) })
	})
}

func (p *pod) transact(ctx context.Context, do func(context.Context, *kgo.GroupTransactSession, int32) error) error {
	s, err := kgo.NewGroupTransactSession(append(p.session(), kgo.ConsumerGroup(p.ID), kgo.ConsumeTopics(p.ID), kgo.TransactionalID(p.ID+p.Name),
		kgo.TransactionTimeout(10*time.Second), // 40 s by default
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		polled := s.PollRecords(ctx, 1)
		if err := ctx.Err(); err != nil {
			return nil
		}
		for _, r := range polled.Records() {
			err := p.message(ctx, string(r.Value), func(ctx context.Context, item int32) error {
				if err := s.Begin(); err != nil {
					return err
				}
				did := do(ctx, s, item)
				committed, err := s.End(ctx, kgo.TransactionEndTry(did == nil))
				if err == nil && !committed {
					err = errors.New("not committed")
				}
				return errors.Join(did, err)
			})
			if err != nil { // the session has gone back to the offset that counts
				slog.Error("message", "error", err)
			}
		}
	}
}

// runMirror writes down what readers of committed records see.
func runMirror(ctx context.Context, p *pod) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.Kafka), kgo.ConsumeTopics(p.out()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		polled := client.PollFetches(ctx)
		if err := polled.Err(); err != nil {
			return err
		}
		for _, r := range polled.Records() {
			if _, err := p.db.Exec(ctx, `insert into effect (item, pod) values ($1::text::int, 'Kafka')`, string(r.Value)); err != nil {
				return err
			}
		}
	}
}
