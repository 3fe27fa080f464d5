package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/epochfence/epochfence/internal/show"
)

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	var s settings
	parse := func() (err error) {
		s, err = parseFlags(args, errOut)
		return err
	}
	return show.Run(ctx, "inventory", out, errOut, parse, func(ctx context.Context, b *show.Board) ([]*show.Column, error) {
		return play(ctx, s, b)
	}, writeTable)
}

func play(ctx context.Context, s settings, b *show.Board) ([]*show.Column, error) {
	where := strings.Join(s.brokers, ",")
	if len(s.brokers) == 0 {
		addrs, stop, err := fakeBroker(s.session)
		if err != nil {
			return nil, err
		}
		defer stop()
		s.brokers, where = addrs, "a fake one in this process"
	}
	k, err := connectKafka(ctx, s.brokers)
	if err != nil {
		return nil, err
	}
	defer k.client.Close()
	var database string
	switch {
	case show.IsPostgres(s.Database):
		if err := show.PingPostgres(ctx, s.Database); err != nil {
			return nil, err
		}
		database = "PostgreSQL"
	case s.Database != "":
		database = "SQLite, " + s.Database
	default:
		dir, remove, err := show.TempDir("epochfence-inventory-", s.Keep)
		if err != nil {
			return nil, err
		}
		defer remove()
		s.Database = filepath.Join(dir, "inventory.db")
		database = "SQLite in a temporary directory"
	}
	introduce(b, s, where, database)
	var cs []*show.Column
	id := s.ID()
	for _, name := range s.Names() {
		side := newSide(s, k, name, id)
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

func introduce(b *show.Board, s settings, broker, database string) {
	frozenWhere := "before their SQL"
	if show.IsPostgres(s.Database) {
		frozenWhere += " or after it"
	}
	b.Print(fmt.Sprintf("Reservations: %s; partitions: %d; worker processes: %d; seed: %d",
		show.Thousands(s.Messages), s.Partitions, s.Workers, s.Seed))
	b.Print("Broker: " + broker + "; database: " + database)
	b.Print("")
	if s.Naive {
		b.Print("Both columns: own topic, group and tables; same messages, handler and schedule.")
	}
	b.Print("Frozen:  SIGSTOP with messages in hand, " + frozenWhere + ",")
	b.Print("         until another worker has gone on with its partitions; then SIGCONT.")
	b.Print("Killed:  SIGKILL after its transaction's commit, before the offsets' commit.")
	if show.IsPostgres(s.Database) {
		b.Print("Cut off: its open transaction was ended by the next owner's claim.")
	}
	b.Print("At p/o:  the first message in hand, by partition and offset.")
	b.Print("")
}
