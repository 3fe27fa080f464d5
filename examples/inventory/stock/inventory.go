// Package stock is the show of examples/inventory: reservations that are deducted from a stock.
package stock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
)

type inventory struct {
	show.Settings
	brokers string        // with commas; "" means a fake one
	session time.Duration // the session timeout of the group's members
	sink    string        // "" for SQL, the name of one of stores, or the URL of one
	stores  []Store

	where  string // the broker is
	client *kgo.Client
	admin  *kadm.Client
	store  *opened // with -sink
}

// New returns the show, whose -sink knows these stores.
func New(stores ...Store) show.Show { return newInventory(stores...) }

// kafkaMinSession is Kafka's default of group.min.session.timeout.ms.
const kafkaMinSession = 6 * time.Second

func newInventory(stores ...Store) *inventory {
	return &inventory{
		Settings: show.Settings{
			Name: "inventory", Messages: 50_000, Rate: 8000,
			// An incident takes somewhat longer than a session, because the group has to notice it.
			Every:   8 * time.Second,
			Freezes: []show.Point{show.InHand}, Kills: []show.Point{show.AfterCommit},
		},
		session: kafkaMinSession, stores: stores,
	}
}

func (v *inventory) Flags(fs *flag.FlagSet) {
	fs.StringVar(&v.brokers, "brokers", "", "Kafka's `host:port`, several with commas; empty: a fake broker in this process")
	fs.StringVar(&v.sink, "sink", "", "the stock is in a store without SQL: "+usage(v.stores))
}

func (v *inventory) Check() error {
	if show.IsPostgres(v.Database) {
		v.Freezes = []show.Point{show.AfterWrites, show.InHand}
	}
	if v.sink != "" {
		if v.Database != "" {
			return errors.New("-sink and -database are both given; the stock is in one place")
		}
		if _, err := find(v.stores, v.sink); err != nil {
			return err
		}
	}
	if v.brokers == "" {
		return nil
	}
	for b := range strings.SplitSeq(v.brokers, ",") {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			return fmt.Errorf("-brokers: %q is not host:port, such as 127.0.0.1:9092", b)
		}
	}
	return nil
}

// Open connects to Kafka, or to a fake broker in this process, and to the store of -sink.
func (v *inventory) Open(ctx context.Context) (closer func(), err error) {
	if v.sink == "" {
		return v.openKafka(ctx)
	}
	v.store, err = openStore(ctx, v.stores, v.sink, v.Dir)
	if err != nil {
		return nil, err
	}
	stop, err := v.openKafka(ctx)
	if err != nil {
		v.store.close()
		return nil, err
	}
	return func() { stop(); v.store.close() }, nil
}

// openKafka starts a fake broker unless there is a real one. It allows sessions as short as the
// settings need.
func (v *inventory) openKafka(ctx context.Context) (closer func(), err error) {
	stop := func() {}
	v.where = v.brokers
	if v.brokers == "" {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(min(v.session, kafkaMinSession)))
		if err != nil {
			return nil, fmt.Errorf("start the fake broker: %w", err)
		}
		stop, v.where = cluster.Close, "a fake one in this process"
		v.brokers = strings.Join(cluster.ListenAddrs(), ",")
	}
	v.client, err = kgo.NewClient(kgo.SeedBrokers(strings.Split(v.brokers, ",")...), kgo.ClientID(v.Name),
		kgo.RecordRetries(20), kgo.RecordDeliveryTimeout(time.Minute))
	if err != nil {
		stop()
		return nil, fmt.Errorf("-brokers: %w", err)
	}
	closer = func() { v.client.Close(); stop() }
	answer, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	if err := v.client.Ping(answer); err != nil {
		closer()
		return nil, fmt.Errorf("-brokers: cannot reach Kafka; is it running, and is this its plaintext listener? %w", err)
	}
	v.admin = kadm.NewClient(v.client)
	return closer, nil
}

func (v *inventory) Introduce() []string {
	database, what, where, cut := "SQLite in a temporary directory", "tables", "before their SQL", ""
	switch {
	case v.sink != "":
		database, what, where = v.store.where, "items", "before their handler"
	case show.IsPostgres(v.Database):
		database, where = "PostgreSQL", "before their SQL or after it"
		cut = "\nCut off: its open transaction was ended by the next owner's claim."
	}
	return []string{
		fmt.Sprintf("Reservations: %s; partitions: %d; worker processes: %d; seed: %d",
			show.Thousands(v.Messages), v.Partitions, v.Workers, v.Seed),
		"Broker: " + v.where + "; database: " + database,
		"",
		"Each column: own topic, group and " + what + "; same messages, handler and schedule.",
		"Frozen:  SIGSTOP with messages in hand, " + where + ",",
		"         until another worker has gone on with its partitions; then SIGCONT.",
		"Killed:  SIGKILL after its transaction's commit, before the offsets' commit." + cut,
		"At p/o:  the first message in hand, by partition and offset.",
		"",
	}
}
