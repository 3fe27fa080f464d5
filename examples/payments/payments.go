package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/servers/localnats"
	"github.com/epochfence/epochfence/internal/show"
)

type payments struct {
	show.Load
	nats     string // "" means a server in this process
	replicas int

	lease time.Duration // after which other workers get a silent worker's messages
	// timeout is the timeout of a request to the gateway. All concurrent requests may queue there,
	// on a busy machine.
	timeout time.Duration

	js jetstream.JetStream
}

func newPayments() *payments {
	return &payments{
		Load: show.Load{
			Settings: show.Settings{Name: "payments", Worker: "worker", Evidence: "what is stored alone"},
			Messages: 10_000, Rate: 1500,
			Freezes: []show.Point{show.BeforeSend, show.InHand},
			Kills:   []show.Point{show.Answered, show.AfterCommit},
		},
		lease: 3 * time.Second, timeout: 3 * time.Second,
	}
}

func (p *payments) Flags(fs *flag.FlagSet) {
	p.Load.Flags(fs)
	fs.StringVar(&p.nats, "nats", "", "nats://… `URL` of servers with JetStream, several with commas; empty: a server in this process")
	fs.IntVar(&p.replicas, "replicas", 1, "replicas of streams and leases, 1 to 5, as a `number`; more than one needs -nats")
}

func (p *payments) Check() error {
	if err := errors.Join(p.Load.Check(), show.Within("replicas", p.replicas, 1, 5)); err != nil {
		return err
	}
	// An incident takes somewhat longer than a lease. A long load has fewer, so that it makes progress.
	p.Every = 4 * time.Second
	if p.Duration > time.Minute {
		p.Every = 10 * time.Second
	}
	if p.nats == "" && p.replicas > 1 {
		return fmt.Errorf("-replicas is %d, and the one server in this process keeps 1; name a cluster with -nats", p.replicas)
	}
	for s := range strings.SplitSeq(p.nats, ",") {
		u, err := url.Parse(s)
		if p.nats != "" && (err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "") { // a password may be in it
			return errors.New("-nats: want URLs such as nats://127.0.0.1:4222")
		}
	}
	return nil
}

// Open connects to NATS, or to a nats-server in this process.
func (p *payments) Open(ctx context.Context, atEnd func(func())) (err error) {
	if p.nats == "" {
		url, stop, err := localnats.Start(filepath.Join(p.Dir, "jetstream"))
		if err != nil {
			return err
		}
		atEnd(stop)
		p.nats = url
	}
	if p.js, err = connect(p.nats, p.Name); err != nil {
		return err
	}
	atEnd(p.js.Conn().Close)
	ctx, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	if _, err := p.js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("-nats: JetStream does not answer; is it on (nats-server -js)? %w", err)
	}
	return nil
}

func (p *payments) Introduce() []string {
	ledger := "SQLite"
	if show.IsPostgres(p.Database) {
		ledger = "PostgreSQL"
	}
	return []string{
		fmt.Sprintf("%s payments from %s accounts, on %d partitions, for %d workers; seed %d",
			show.Thousands(p.Messages), show.Thousands(p.accounts()), p.Partitions, p.Workers, p.Seed),
		"nats-server at " + p.js.Conn().ConnectedUrlRedacted() + "; ledger in " + ledger,
		"gateway: a server in this process, with a database of its own",
		"",
		"A worker writes each payment into the ledger and asks the gateway to charge it.",
		"Now and then the gateway charges and does not answer. Workers are killed, or",
		"frozen (SIGSTOP) until another one has done what they had in hand:",
		"  before its request  the payment is written, the charge about to be asked for",
		"  after its answer    it is charged, and that is not yet written",
		"  at p/n              the first message in hand was number n of partition p",
		"The baseline charges, writes the payment, then acks. Same schedule, no epochs.",
		"",
	}
}

// accounts returns the number of accounts: enough for each partition to have some, which are
// charged concurrently, and few enough for each to be charged often.
func (p *payments) accounts() int { return max(400, 40*p.Partitions, p.Messages/100) }

// silentEvery makes the gateway not answer about twenty requests of a show.
func (p *payments) silentEvery() int { return max(2, p.Messages/20) }

type config struct {
	Worker string // its name in the ledger

	NATS      string
	Stream    string
	Transform natssource.Transform
	Group     string        // and bucket of the leases, or durable consumer
	Lease     time.Duration // after which a silent worker's partitions or messages go to others

	Gateway string        // its URL
	Timeout time.Duration // of a request to the gateway
}

func (*payments) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	js, err := connect(c.NATS, c.Group+" "+c.Worker)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	switch {
	case stage.Column == show.Baseline:
		return baseline(ctx, c, js, stage)
	case stage.DB.Pool != nil:
		return payPostgres(ctx, c, js, stage.DB, stage)
	default:
		return paySQLite(ctx, c, js, stage.DB.DB, stage)
	}
}

// transport returns a transport that keeps enough connections to the one gateway.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 256, 256
	t.Proxy = nil // the gateway is on this machine
	return t
}
