package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/ops/statusz"
)

type side struct {
	settings
	kafka  *kafka
	name   string
	topic  string // and group
	schema string // in its database, for PostgreSQL
	items  int
	crew   *show.Crew
	pace   *show.Pace
	window *show.Window // nil without -http
	db     *database    // nil until created
	made   bool         // the topic exists

	sent    []show.Place // each message's place, once all are sent
	verdict verdict
}

// incidentEvery is the time between freezes and kills in a long load. Each incident takes somewhat
// longer than a session, because the group has to notice it.
const incidentEvery = 8 * time.Second

func newSide(s settings, k *kafka, name, id string) *side {
	word := map[string]string{show.Fence: "fenced", show.Baseline: "baseline"}[name]
	sd := &side{
		settings: s, kafka: k, name: name, topic: "inventory-" + id + "-" + word,
		schema: "inventory_" + id + "_" + word, items: catalogue(s.Partitions),
		pace: show.NewPace(s.Messages, s.Duration, show.Count(s.Duration, incidentEvery)),
	}
	sd.crew = show.NewCrew(func(n int) any {
		return config{
			Side: name, Worker: "worker " + strconv.Itoa(n), Brokers: s.brokers, Topic: sd.topic, Group: sd.topic,
			Database: s.DatabaseOf(name), Schema: sd.schema, Session: s.session,
		}
	})
	return sd
}

func (sd *side) column() *show.Column {
	freezes := []show.Point{show.Unlocked} // a process frozen with SQLite's write lock would block all others
	if show.IsPostgres(sd.Database) {
		freezes = []show.Point{show.AfterWrites, show.InHand, show.BeforeWrites}
	}
	return &show.Column{
		Name: sd.name, Play: sd, Crew: sd.crew, Pace: sd.pace, Held: sd.Partitions,
		Plan: show.NewSchedule(sd.Seed, show.Count(sd.Duration, incidentEvery), sd.Workers, freezes, []show.Point{show.AfterCommit}),
	}
}

func (sd *side) Prepare(ctx context.Context) (err error) {
	if sd.db, err = newDatabase(ctx, sd.DatabaseOf(sd.name), sd.schema, sd.items); err != nil {
		return err
	}
	if err := sd.kafka.createTopic(ctx, sd.topic, sd.Partitions); err != nil {
		return err
	}
	sd.made = true
	op, err := sd.db.operator(ctx)
	if err != nil {
		return err
	}
	return sd.window.Show(statusz.Options{Title: "inventory", Operator: op, Logs: sd.logs})
}

func (sd *side) logs(ctx context.Context, fences []epoch.Fence) (map[epoch.Partition]statusz.Log, error) {
	begins, err := sd.kafka.admin.ListStartOffsets(ctx, sd.topic)
	if err != nil {
		return nil, fmt.Errorf("inventory: list where %s begins: %w", sd.topic, err)
	}
	ends, err := sd.kafka.admin.ListEndOffsets(ctx, sd.topic)
	if err != nil {
		return nil, fmt.Errorf("inventory: list where %s ends: %w", sd.topic, err)
	}
	logs := map[epoch.Partition]statusz.Log{}
	for _, f := range fences {
		begin, _ := begins.Lookup(sd.topic, f.Partition.Number)
		end, known := ends.Lookup(sd.topic, f.Partition.Number)
		if known {
			logs[f.Partition] = statusz.Log{
				Begin: epoch.Offset(begin.Offset), End: epoch.Offset(end.Offset), Lag: max(end.Offset-int64(f.Next), 0),
			}
		}
	}
	return logs, ends.Error()
}

func (sd *side) Send(ctx context.Context) (err error) {
	sd.sent, err = sd.kafka.send(ctx, sd.topic, sd.Seed, sd.items, sd.Messages, sd.pace)
	return err
}

func (sd *side) Settle(ctx context.Context) error {
	ends := map[int32]int64{} // the offset after each partition's last message
	for _, p := range sd.sent {
		ends[p.Partition] = max(ends[p.Partition], p.Offset+1)
	}
	return sd.crew.AwaitPositions(ctx, ends, show.Patience)
}

func (sd *side) Judge(ctx context.Context) (exact bool, err error) {
	sd.verdict, err = judge(ctx, sd.db, sd.Seed, sd.items, sd.sent)
	return sd.verdict.exact(), err
}

func (sd *side) Close(keep bool) (kept string, err error) {
	if keep {
		if sd.db == nil {
			return "", nil
		}
		sd.db.Close()
		return fmt.Sprintf("%s, topic and group %s", sd.db, sd.topic), nil
	}
	if sd.made {
		err = sd.kafka.remove(sd.topic, sd.topic)
	}
	if sd.db != nil {
		err = errors.Join(err, sd.db.Drop())
	}
	return "", err
}
