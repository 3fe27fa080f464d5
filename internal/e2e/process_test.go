package e2e_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// processEnv makes the test binary a worker process: a processSpec in JSON.
const processEnv = "EPOCHFENCE_E2E_PROCESS"

type processSpec struct {
	Addr, Group, Topic string
	Database           string // a SQLite file
	Name               string
	Effect             string // the statement that is a message's effect
	Hangs              bool   // whether it hangs on a message that is trap
	NATS               string // the server, instead of Kafka's
	PostgreSQL         string // instead of the file, with messages of different keys beside each other
	Stops              bool   // whether it waits in a replay until it gets a line
}

// session is short, so that the broker soon misses a frozen process.
const session = 2 * time.Second

// noticedTTL is so long that a machine that stands for seconds sees by what partitions are taken over. The lease of a
// process that is gone lasts for two thirds of it at least.
const (
	noticedTTL    = 45 * time.Second
	noticedWithin = noticedTTL / 2
)

// marker is a message at which a worker process says so, and waits for a line
// on its standard input before it continues. It waits once: what comes to nothing after that
// is tried again.
const marker = "marker"

// trap is a message on which a worker process hangs, if it is one that does, until it gets a line.
const trap = "trap"

// later is the beginning of a message that is deferred for an hour.
const later = "later "

// deferred returns the error of a message that is to be handled later.
func (s processSpec) deferred(m consumer.Message, told <-chan struct{}) error {
	if !strings.HasPrefix(string(m.Value), later) {
		return nil
	}
	if m.Replay == 0 {
		return consumer.RetryAfter(errors.New("the bank does not answer"), time.Hour)
	}
	if s.Stops {
		fmt.Println("replays", m.Partition.Number)
		<-told
	}
	return nil
}

// processMain runs one worker. It tells its standard output when it is ready for a signal, and when
// it is at a marker, and ends when its standard input does.
func processMain(spec string) int {
	var s processSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return complain(err)
	}
	told := make(chan struct{})
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for said := false; in.Scan(); said = true {
			if !said {
				close(told)
			}
		}
		os.Exit(3) // whoever started us is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready")

	source, err := s.source()
	if err != nil {
		return complain(err)
	}
	o := consumer.Options{
		RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
		HaltMin: 100 * time.Millisecond, HaltMax: 500 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if s.PostgreSQL != "" {
		return processKeys(ctx, s, source, told, o)
	}
	db, err := sql.Open("sqlite", s.Database)
	if err != nil {
		return complain(err)
	}
	defer db.Close()
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return complain(err)
	}
	handle := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if string(m.Value) == marker {
			fmt.Println("marker", m.Partition.Number)
			<-told
		}
		if s.Hangs && string(m.Value) == trap {
			fmt.Println("hangs")
			<-told // it has written nothing, and tries to now
		}
		if err := s.deferred(m, told); err != nil {
			return err
		}
		_, err := tx.ExecContext(context.WithoutCancel(ctx), s.Effect, m.Partition.Number, m.Value, e, s.Name)
		return err
	}
	err = consumer.Run(ctx, source, sink, consumer.Each(handle), o)
	if err != nil {
		return complain(err)
	}
	return 0
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func (s processSpec) source() (consumer.Source, error) {
	if s.NATS != "" {
		return natsWorker(s.NATS)
	}
	return kafkasource.New(kafkasource.Options{
		Group: s.Group, Topics: []string{s.Topic},
		Client: []kgo.Opt{
			kgo.SeedBrokers(s.Addr), kgo.ClientID(s.Name), kgo.Balancers(kgo.CooperativeStickyBalancer()),
			kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 10), kgo.RebalanceTimeout(10 * time.Second),
		},
	})
}
