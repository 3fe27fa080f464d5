package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/ops/statusz"
)

type side struct {
	settings
	broker  *broker
	name    string
	stream  string // and group, and bucket or consumer
	schema  string // of its ledger in PostgreSQL
	charges string // the gateway's database
	crew    *show.Crew
	pace    *show.Pace
	window  *show.Window // nil without -http

	db      *ledgerDB    // nil until created
	gateway *show.Helper // nil until started, and after its end
	made    bool         // the stream exists

	sent    []show.Place // each message's place, once all are sent
	verdict verdict
}

// incidents returns the number of freezes and kills: as many as there is time for, because each
// takes somewhat longer than a lease. A long load has fewer, so that it makes progress.
func (s settings) incidents() int {
	every := 4 * time.Second
	if s.Duration > time.Minute {
		every = 10 * time.Second
	}
	return show.Count(s.Duration, every)
}

func newSide(s settings, b *broker, name, id, dir string) *side {
	word := map[string]string{show.Fence: "fenced", show.Baseline: "baseline"}[name]
	sd := &side{
		settings: s, broker: b, name: name, stream: "payments-" + id + "-" + word,
		schema: "payments_" + id + "_" + word, charges: filepath.Join(dir, "gateway-"+word+".db"),
		pace: show.NewPace(s.Messages, s.Duration, s.incidents()),
	}
	sd.crew = show.NewCrew(func(n int) any { return sd.config(n) })
	if name == show.Fence {
		sd.crew.Progress = func(t show.Tally) int { return min(t.Applied, t.Answered) }
	}
	sd.crew.Elsewhere = func(ctx context.Context, payment string) (bool, error) { return sd.db.settled(ctx, payment) }
	return sd
}

func (sd *side) config(n int) config {
	return config{
		Role: sd.name, Number: n, Worker: "worker " + strconv.Itoa(n),
		NATS: sd.nats, Stream: sd.stream, Transform: transform(sd.stream, sd.Partitions), Group: sd.stream, Lease: sd.lease,
		Database: sd.DatabaseOf(sd.name), Schema: sd.schema, Gateway: sd.gateway.Address, Timeout: sd.timeout,
	}
}

func (sd *side) column() *show.Column {
	c := &show.Column{
		Name: sd.name, Play: sd, Crew: sd.crew, Pace: sd.pace, Held: sd.Partitions,
		Plan: show.NewSchedule(sd.Seed, sd.incidents(), sd.Workers,
			[]show.Point{show.BeforeSend, show.Answered, show.Unlocked},
			[]show.Point{show.Answered, show.AfterCommit}),
	}
	if sd.name == show.Baseline {
		c.Held = sd.Workers // any worker gets any message
	}
	return c
}

func (sd *side) Prepare(ctx context.Context) (err error) {
	if sd.db, err = newLedger(ctx, sd.DatabaseOf(sd.name), sd.schema); err != nil {
		return err
	}
	if err := sd.broker.createStream(ctx, sd.stream, sd.Partitions); err != nil {
		return err
	}
	sd.made = true
	op, err := sd.db.operator(ctx)
	if err != nil {
		return err
	}
	box, err := sd.db.outboxOperator(ctx)
	if err != nil {
		return err
	}
	logs := func(ctx context.Context, fences []epoch.Fence) (map[epoch.Partition]statusz.Log, error) {
		return sd.broker.logs(ctx, sd.stream, fences)
	}
	if err := sd.window.Show(statusz.Options{Title: "payments", Operator: op, Outbox: box, Logs: logs}); err != nil {
		return err
	}
	if sd.name == show.Baseline {
		if err := sd.broker.createConsumer(ctx, sd.stream, sd.stream, sd.lease); err != nil {
			return err
		}
	}
	sd.gateway, err = show.StartHelper(ctx, config{
		Role: roleGateway, Database: sd.charges, Fenced: sd.name == show.Fence, Silent: sd.silentEvery(),
	})
	return err
}

func (sd *side) Send(ctx context.Context) (err error) {
	sd.sent, err = sd.broker.send(ctx, sd.stream, sd.Seed, accounts(sd.Settings), sd.Partitions, sd.Messages, sd.pace)
	return err
}

func (sd *side) Settle(ctx context.Context) error {
	if sd.name == show.Baseline {
		return sd.crew.AwaitNone(ctx, func(ctx context.Context) (int, error) {
			return sd.broker.unacked(ctx, sd.stream, sd.stream)
		}, show.Patience)
	}
	ends := map[int32]int64{} // the offset after each partition's last message
	for _, p := range sd.sent {
		ends[p.Partition] = max(ends[p.Partition], p.Offset+1)
	}
	if err := sd.crew.AwaitPositions(ctx, ends, show.Patience); err != nil {
		return err
	}
	return sd.crew.AwaitNone(ctx, sd.db.uncharged, show.Patience)
}

func (sd *side) Judge(ctx context.Context) (exact bool, err error) {
	if err := sd.stopGateway(); err != nil {
		return false, err
	}
	sd.verdict, err = judge(ctx, sd.db, gatewayDB{sd.charges}, sd.Seed, accounts(sd.Settings), sd.sent)
	return sd.verdict.exact(sd.name == show.Fence), err
}

func (sd *side) stopGateway() error {
	g := sd.gateway
	if g == nil {
		return nil
	}
	sd.gateway = nil
	return g.Stop(2 * gatewayGrace)
}

func (sd *side) Close(keep bool) (kept string, err error) {
	err = sd.stopGateway()
	if keep {
		if sd.db == nil {
			return "", err
		}
		sd.db.Close()
		return fmt.Sprintf("%s, %s, stream %s", sd.db, sd.charges, sd.stream), err
	}
	if sd.made {
		err = errors.Join(err, sd.broker.remove(sd.stream, sd.stream))
	}
	if sd.db != nil {
		err = errors.Join(err, sd.db.Drop())
	}
	return "", err
}
