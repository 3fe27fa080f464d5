package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/epochfence/epochfence/internal/show"
)

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	var s settings
	parse := func() (err error) {
		s, err = parseFlags(args, errOut)
		return err
	}
	return show.Run(ctx, "payments", out, errOut, parse, func(ctx context.Context, b *show.Board) ([]*show.Column, error) {
		return play(ctx, s, b)
	}, writeTable)
}

func play(ctx context.Context, s settings, b *show.Board) ([]*show.Column, error) {
	if show.IsPostgres(s.Database) {
		if err := show.PingPostgres(ctx, s.Database); err != nil {
			return nil, err
		}
	}
	dir, remove, err := show.TempDir("epochfence-payments-", s.Keep)
	if err != nil {
		return nil, err
	}
	defer remove()
	server := "at " + s.nats
	if s.nats == "" {
		url, stop, err := embeddedServer(filepath.Join(dir, "jetstream"))
		if err != nil {
			return nil, err
		}
		defer stop()
		s.nats, server = url, "in this process"
	}
	br, err := connectBroker(ctx, s.nats, s.replicas)
	if err != nil {
		return nil, err
	}
	defer br.conn.Close()
	ledger := "in " + s.Database
	switch {
	case show.IsPostgres(s.Database):
		ledger = "in PostgreSQL"
	case s.Database == "":
		s.Database, ledger = filepath.Join(dir, "ledger.db"), "in SQLite"
	}
	introduce(b, s, server, ledger)
	var cs []*show.Column
	id := s.ID()
	for _, name := range s.Names() {
		side := newSide(s, br, name, id, dir)
		if name == show.Fence {
			if side.window, err = s.OpenWindow(b, side.crew); err != nil {
				return nil, err
			}
			defer side.window.Close()
		}
		cs = append(cs, side.column())
	}
	return cs, s.Stage(ctx, b, cs)
}

func introduce(b *show.Board, s settings, server, ledger string) {
	b.Print(fmt.Sprintf("%s payments from %s accounts, on %d partitions, for %d workers; seed %d",
		show.Thousands(s.Messages), show.Thousands(accounts(s.Settings)), s.Partitions, s.Workers, s.Seed))
	b.Print("nats-server " + server)
	b.Print("ledger " + ledger)
	b.Print("gateway: a process with a database of its own")
	b.Print("")
	b.Print("A worker writes each payment into the ledger and asks the gateway to charge it.")
	b.Print("Now and then the gateway charges and does not answer. Workers are killed, or")
	b.Print("frozen (SIGSTOP) until another one has done what they had in hand:")
	b.Print("  before its request  the payment is written, the charge about to be asked for")
	b.Print("  after its answer    it is charged, and that is not yet written")
	b.Print("  at p/n              at messages, the first of them n of partition p")
	if s.Naive {
		b.Print("The baseline charges, writes the payment, then acks. Same schedule, no epochs.")
	}
	b.Print("")
}
