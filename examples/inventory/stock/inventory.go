// Package stock is the show of examples/inventory: reservations that are deducted from a stock.
package stock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
)

type inventory struct {
	show.Load
	brokers string        // with commas; "" means a fake one
	session time.Duration // the session timeout of the group's members
	sink    string        // "" for SQL, or the URL of a store; "nats" for one in this process
	publish bool
	stores  stores.Kinds

	broker string // where it is
	client *kgo.Client
	admin  *kadm.Client
	store  cas.Store // with -sink
}

// New returns the show, whose -sink knows NATS and these stores.
func New(more ...stores.Kind) show.Show { return newInventory(more...) }

// kafkaMinSession is Kafka's default of group.min.session.timeout.ms.
const kafkaMinSession = 6 * time.Second

func newInventory(more ...stores.Kind) *inventory {
	return &inventory{
		Load: show.Load{
			Settings: show.Settings{Name: "inventory", Worker: "worker", Evidence: "what is stored alone"},
			Messages: 50_000, Rate: 8000,
			// An incident takes somewhat longer than a session, because the group has to notice it.
			Every:   8 * time.Second,
			Freezes: []show.Point{show.InHand}, Kills: []show.Point{show.AfterCommit},
		},
		session: kafkaMinSession, stores: append(stores.Kinds{stores.NATS}, more...),
	}
}

func (v *inventory) Flags(fs *flag.FlagSet) {
	v.Load.Flags(fs)
	fs.StringVar(&v.brokers, "brokers", "", "Kafka's `host:port`, several with commas; empty: a fake broker in this process")
	fs.BoolVar(&v.publish, "publish", false, "also publish each deduction to a topic, which is audited, too: the fenced column through an outbox (kafkaoutbox)")
	fs.StringVar(&v.sink, "sink", "", "the stock is in a store without SQL: "+v.stores.String())
}

func (v *inventory) Check() error {
	if show.IsPostgres(v.Database) {
		v.Freezes = []show.Point{show.AfterWrites, show.InHand}
	}
	if v.sink != "" {
		if v.Database != "" {
			return errors.New("-sink and -database are both given; the stock is in one place")
		}
		if v.publish {
			return errors.New("-sink and -publish are both given; the show has its outbox in SQL")
		}
		if err := v.stores.Check("sink", v.sink); err != nil {
			return err
		}
	}
	if v.publish {
		v.Freezes = append([]show.Point{show.Publishing}, v.Freezes...)
		v.Kills = append([]show.Point{show.Published}, v.Kills...)
	}
	return v.Load.Check()
}

// Open connects to Kafka, or to a fake broker in this process, and to the store of -sink.
func (v *inventory) Open(ctx context.Context, atEnd func(func())) (err error) {
	if v.sink != "" {
		if v.sink, v.store, err = v.stores.Reach(ctx, v.sink, v.Dir, "inventory", atEnd); err != nil {
			return fmt.Errorf("-sink: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	if err := v.openKafka(ctx, atEnd); err != nil {
		return fmt.Errorf("-brokers: cannot reach Kafka; is it running, and is this its plaintext listener? %w", err)
	}
	return nil
}

// openKafka starts a fake broker unless there is a real one. It allows sessions as short as the
// settings need.
func (v *inventory) openKafka(ctx context.Context, atEnd func(func())) (err error) {
	v.broker = v.brokers
	if v.brokers == "" {
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(min(v.session, kafkaMinSession)))
		if err != nil {
			return err
		}
		atEnd(fake.Close)
		v.brokers, v.broker = strings.Join(fake.ListenAddrs(), ","), "a fake one in this process"
	}
	v.client, err = kgo.NewClient(kgo.SeedBrokers(strings.Split(v.brokers, ",")...), kgo.ClientID(v.Name),
		kgo.RecordRetries(20), kgo.UnknownTopicRetries(-1), kgo.RecordDeliveryTimeout(time.Minute)) // a new topic may be unknown for a while
	if err != nil {
		return err
	}
	atEnd(v.client.Close)
	v.admin = kadm.NewClient(v.client)
	return v.client.Ping(ctx)
}

func (v *inventory) Introduce() []string {
	database, point := "SQLite in a temporary directory", "before their SQL"
	switch {
	case v.store != nil:
		kind, _, _ := strings.Cut(v.sink, "://")
		database, point = "items in "+kind, "before their handler"
	case show.IsPostgres(v.Database):
		database, point = "PostgreSQL", "before their SQL or after it"
	}
	publish := ""
	if v.publish {
		publish = "Publish: the fenced column through an outbox, the baseline after its commit.\n" +
			"         Frozen, too, with records in an open transaction; killed when it has ended.\n\n"
	}
	return []string{
		fmt.Sprintf("Reservations: %s; partitions: %d; worker processes: %d; seed: %d",
			show.Thousands(v.Messages), v.Partitions, v.Workers, v.Seed),
		"Broker: " + v.broker + "; database: " + database,
		"",
		"Each column: own topic, group and data; same messages, handler and schedule.",
		"Frozen:  SIGSTOP with messages in hand, " + point + ",",
		"         until another worker has gone on with its partitions; then SIGCONT.",
		"Killed:  SIGKILL after its transaction's commit, before the offsets' commit.",
		"Cut off: its open transaction was ended by the next owner's claim (PostgreSQL).",
		"At p/o:  the first message in hand, by partition and offset.",
		publish,
	}
}

type config struct {
	Worker  string // its name in the ledger
	Brokers []string
	Topic   string
	Group   string
	Store   string // the URL of a store, instead of a database
	Publish bool
	Session time.Duration // the session timeout of the group's members
}

func (v *inventory) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	baseline, db := stage.Column == show.Baseline, stage.DB
	switch {
	case c.Store != "":
		store, closer, err := v.stores.Open(ctx, c.Store)
		if err != nil {
			return err
		}
		defer closer()
		if baseline {
			return baselineItems(ctx, c, store, stage)
		}
		return consumeItems(ctx, c, store, stage)
	case baseline && db.Pool != nil:
		return baselinePostgres(ctx, c, db.Pool, stage)
	case baseline:
		return baselineSQLite(ctx, c, db.DB, stage)
	case db.Pool != nil:
		return consumePostgres(ctx, c, db, stage)
	default:
		return consumeSQLite(ctx, c, db.DB, stage)
	}
}

// client returns the options of both columns' Kafka clients. They have the same timeouts, after
// which a silent worker loses its partitions.
func (c config) client() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.Group + "-" + c.Worker),
		kgo.SessionTimeout(c.Session),
		kgo.HeartbeatInterval(c.Session / 6),
		kgo.RebalanceTimeout(5 * c.Session / 2),
	}
}

// options observe a worker's transactions for -http, and let it be frozen.
func options(stage *show.Stage) consumer.Options {
	return consumer.Options{Observe: stage.Stats.Observe, HangTimeout: show.HangTimeout}
}
