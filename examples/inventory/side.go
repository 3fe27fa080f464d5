package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// side is one column while it is played.
type side struct {
	settings
	kafka  *kafka
	board  *show.Board
	name   string
	topic  string // and group
	path   string // of its database
	schema string // in it, where that is PostgreSQL
	crew   *show.Crew
	pace   *show.Pace
	plan   []show.Incident
	items  int
	db     *database // nil until created
	made   bool      // the topic

	judged  bool
	verdict verdict
	err     error
}

// incidentEvery is how far apart freezes and kills are in a long load. Each
// takes as long as the group needs to notice, somewhat more than a session.
const incidentEvery = 8 * time.Second

func newSide(s settings, k *kafka, b *show.Board, name, id string) *side {
	word := map[string]string{fenced: "fenced", usual: "usual"}[name]
	sd := &side{
		settings: s, kafka: k, board: b, name: name, topic: "inventory-" + id + "-" + word,
		path: s.database, schema: "inventory_" + id + "_" + word, items: catalogue(s.partitions),
	}
	points := []show.Point{show.Unlocked} // nobody can take SQLite's write lock from a frozen process
	if isPostgres(s.database) {
		points = []show.Point{show.AfterWrites, show.InHand, show.BeforeWrites}
	} else {
		sd.path = sqlitePath(s.database, name)
	}
	incidents := show.Count(s.duration, incidentEvery)
	sd.plan = show.NewSchedule(s.seed, incidents, s.workers, points...)
	sd.pace = show.NewPace(s.messages, s.duration, incidents)
	sd.crew = show.NewCrew(func(n int) any {
		return config{
			Side: name, Worker: "worker " + strconv.Itoa(n), Brokers: s.brokers, Topic: sd.topic, Group: sd.topic,
			Database: sd.path, Schema: sd.schema, Session: s.session,
		}
	})
	return sd
}

// play plays the column and judges it.
func (sd *side) play(ctx context.Context) (err error) {
	if sd.db, err = newDatabase(ctx, sd.path, sd.schema, sd.items); err != nil {
		return err
	}
	if err := sd.kafka.createTopic(ctx, sd.topic, sd.partitions); err != nil {
		return err
	}
	sd.made = true
	sent, err := sd.consume(ctx)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, sd.crew.Logs())
	}
	if ctx.Err() != nil {
		sd.crew.Stop(0) // interrupted: nobody will look at what they did
	}
	if killed := sd.crew.Stop(stopGrace); killed > 0 && err == nil {
		err = fmt.Errorf("%d workers did not end within %v of being asked to, and were killed", killed, stopGrace)
	}
	if sent == nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	v, judging := judge(ctx, sd.db, sd.seed, sd.items, sent)
	sd.verdict, sd.judged = v, judging == nil
	return errors.Join(err, judging)
}

// consume runs workers, load and schedule until everything is applied. It
// returns where each message was put, nil if not all could be sent.
func (sd *side) consume(ctx context.Context) ([]show.Place, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for range sd.workers {
		if _, err := sd.crew.Start(); err != nil {
			return nil, err
		}
	}
	if err := sd.crew.AwaitHeld(ctx, sd.partitions, startLimit); err != nil {
		return nil, err
	}

	var sent []show.Place
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		s, err := sd.kafka.send(ctx, sd.topic, sd.seed, sd.items, sd.messages, sd.pace)
		if err != nil {
			cancel(err)
			return
		}
		sent = s
	}()
	limits := show.Limits{Strike: 30 * time.Second, Move: time.Minute, Settle: 30 * time.Second}
	err := sd.crew.Play(ctx, sd.plan, sd.messages, sd.pace, limits, func(line string) { sd.board.Event(sd.name, line) })
	if err != nil {
		cancel(err)
	}
	<-loaded
	if err != nil {
		return sent, err
	}
	return sent, sd.crew.AwaitPositions(ctx, ends(sent), patience)
}

// ends is the offset after each partition's last message.
func ends(sent []show.Place) map[int32]int64 {
	m := map[int32]int64{}
	for _, p := range sent {
		m[p.Partition] = max(m[p.Partition], p.Offset+1)
	}
	return m
}

// close removes what the column made, unless it is to be kept.
func (sd *side) close() (err error) {
	sd.crew.Stop(0)
	if sd.keep {
		if sd.db != nil {
			sd.db.close()
		}
		return nil
	}
	if sd.made {
		err = sd.kafka.remove(sd.topic, sd.topic)
	}
	if sd.db != nil {
		err = errors.Join(err, sd.db.drop())
	}
	return err
}

// kept says where the column's tables are.
func (sd *side) kept() string {
	if sd.db.schema != "" {
		return fmt.Sprintf("schema %s, topic and group %s", sd.db.schema, sd.topic)
	}
	return fmt.Sprintf("%s, topic and group %s", sd.db.path, sd.topic)
}
