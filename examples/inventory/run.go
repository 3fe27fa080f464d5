package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

// Exit statuses.
const (
	statusExact  = 0 // the fenced column is exact
	statusNot    = 1 // it is not, or could not be played
	statusUsage  = 2
	statusHalted = 130 // interrupted
)

// run is the parent: it parses args, plays the columns and shows them.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	s, err := parseFlags(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return statusExact
	case err != nil:
		return statusUsage
	}
	b := show.NewBoard(out)
	cs, err := play(ctx, s, b)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "inventory: interrupted; the workers are stopped")
		if err != nil {
			fmt.Fprintln(errOut, err)
		}
		return statusHalted
	case err != nil:
		fmt.Fprintln(errOut, err)
		return statusNot
	}
	return conclude(b, cs)
}

// play sets up, plays all columns at the same time, and cleans up.
func play(ctx context.Context, s settings, b *show.Board) (cs []*side, err error) {
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
	case isPostgres(s.database):
		if err := pingPostgres(ctx, s.database); err != nil {
			return nil, err
		}
		database = "PostgreSQL"
	case s.database != "":
		database = "SQLite, " + s.database
	default:
		dir, remove, err := show.TempDir("epochfence-inventory-", s.keep)
		if err != nil {
			return nil, err
		}
		defer remove()
		s.database = filepath.Join(dir, "inventory.db")
		database = "SQLite in a temporary directory"
	}

	id := make([]byte, 4)
	_, _ = rand.Read(id)
	names := []string{fenced}
	if s.naive {
		names = append(names, usual)
	}
	for _, name := range names {
		sd := newSide(s, k, b, name, hex.EncodeToString(id))
		cs = append(cs, sd)
		defer func() { err = errors.Join(err, sd.close()) }()
	}
	introduce(b, s, where, database)

	watch, unwatch := context.WithCancel(ctx)
	var watching, playing sync.WaitGroup
	watching.Go(func() { b.Watch(watch, func() []string { return status(b, cs) }) })
	for _, sd := range cs {
		playing.Go(func() { sd.err = sd.play(ctx) })
	}
	playing.Wait()
	unwatch()
	watching.Wait()
	return cs, nil
}

// introduce says what is about to be seen.
func introduce(b *show.Board, s settings, broker, database string) {
	frozenWhere := "before their SQL"
	if isPostgres(s.database) {
		frozenWhere += " or after it"
	}
	b.Print(fmt.Sprintf("Reservations: %s; partitions: %d; worker processes: %d; seed: %d",
		show.Thousands(s.messages), s.partitions, s.workers, s.seed))
	b.Print("Broker: " + broker + "; database: " + database)
	b.Print("")
	if s.naive {
		b.Print("Both columns: own topic, group and tables; same messages, handler and schedule.")
	}
	b.Print("Frozen:  SIGSTOP with messages in hand, " + frozenWhere + ",")
	b.Print("         until another worker has gone on with its partitions; then SIGCONT.")
	b.Print("Killed:  SIGKILL after its transaction's commit, before the offsets' commit.")
	if isPostgres(s.database) {
		b.Print("Cut off: its open transaction was ended by the next owner's claim.")
	}
	b.Print("At p/o:  the first message in hand, by partition and offset.")
	b.Print("")
}

// status is the block that is kept up to date.
func status(b *show.Board, cs []*side) []string {
	line := func(label string, f func(*side, show.Tally) string) string {
		l := fmt.Sprintf("  %-22s", label)
		for _, sd := range cs {
			l += fmt.Sprintf("%18s", f(sd, sd.crew.Tally()))
		}
		return l
	}
	return []string{
		"",
		line(show.Seconds(b.Elapsed()), func(sd *side, _ show.Tally) string { return sd.name }),
		line("messages sent", func(sd *side, _ show.Tally) string { return show.Thousands(sd.pace.Sent()) }),
		line("effects applied", func(_ *side, t show.Tally) string { return show.Thousands(t.Applied) }),
		line("partitions taken over", func(_ *side, t show.Tally) string { return show.Thousands(len(t.Takeovers)) }),
		line("workers", func(_ *side, t show.Tally) string {
			if t.Frozen > 0 {
				return fmt.Sprintf("%d, %d frozen", t.Workers, t.Frozen)
			}
			return fmt.Sprint(t.Workers)
		}),
	}
}

// conclude shows the table and says what it means.
func conclude(b *show.Board, cs []*side) int {
	var columns []column
	for _, sd := range cs {
		if sd.err != nil {
			b.Print(fmt.Sprintf("%s: %v", sd.name, sd.err))
		}
		if sd.judged {
			columns = append(columns, column{sd.name, sd.crew.Tally(), sd.verdict})
		}
	}
	if len(columns) > 0 {
		b.Print("")
		writeTable(b, columns)
		b.Print("")
		if late(columns) {
			b.Print("* the offsets were refused; the effects had been committed before")
		}
		b.Print("Judged from the tables alone, after all workers had ended.")
	}
	for _, sd := range cs {
		if sd.keep && sd.db != nil {
			b.Print(fmt.Sprintf("Kept, %s: %s", sd.name, sd.kept()))
		}
	}
	said, status := "exact", statusExact
	switch f := cs[0]; {
	case f.judged && !f.verdict.exact():
		said, status = "NOT exact", statusNot
	case !f.judged || f.err != nil:
		said, status = "NOT played to its end", statusNot
	}
	for _, c := range columns {
		switch {
		case c.name != usual:
		case c.exact():
			said += "; the usual code's is exact too, this time"
		default:
			said += "; the usual code's is not exact"
		}
	}
	b.Print(fmt.Sprintf("The fenced column is %s (%s).", said, show.Seconds(b.Elapsed())))
	return status
}

func late(cs []column) bool {
	for _, c := range cs {
		if c.name == usual && c.tally.Late > 0 {
			return true
		}
	}
	return false
}

// Limits of what a column waits for. Each is many times what it takes.
const (
	startLimit = time.Minute
	patience   = time.Minute
	stopGrace  = 20 * time.Second
)
