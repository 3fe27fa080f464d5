package show

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Settings are the flags of every show, and what a show sets itself.
type Settings struct {
	Database   string // a postgres:// URL; "" means SQLite in Dir
	Workers    int
	Partitions int
	Messages   int
	Duration   time.Duration
	Seed       uint64
	Naive      bool
	HTTP       string // host:port of the status page; "" means none

	Name    string        // of the program
	Rate    int           // messages per second, unless -duration says otherwise
	Every   time.Duration // between two incidents
	Freezes []Point       // the points of the freezes, in turn
	Kills   []Point       // the points of the kills, in turn
	Dir     string        // a temporary directory, removed at the end
}

// Common returns s. It makes what embeds Settings a [Show].
func (s *Settings) Common() *Settings { return s }

const (
	maxWorkers = 64 // protects the machine from a mistyped flag

	// perPartition is the minimum of messages, so that each incident finds some of each partition.
	perPartition = 100

	// shortest is the default minimum duration of a load: enough for a freeze, a kill and another
	// freeze.
	shortest = 24 * time.Second
)

// ErrUsage is returned when the flags are wrong. The mistake has been printed.
var ErrUsage = errors.New("usage")

// Parse parses the flags of a show. It returns [flag.ErrHelp] or [ErrUsage] after writing the help
// or the mistake to out.
func Parse(show Show, args []string, out io.Writer) error {
	s := show.Common()
	fs := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	fs.SetOutput(out)
	fs.StringVar(&s.Database, "database", "", "postgres://… `URL`; empty: SQLite in a temporary directory")
	fs.IntVar(&s.Workers, "workers", 3, "worker processes of each column, 2 to 64, as a `number`")
	fs.IntVar(&s.Partitions, "partitions", 4, "partitions of the messages, 1 to 1000, as a `number`")
	fs.IntVar(&s.Messages, "messages", s.Messages, "messages of each column, 100 for each partition at least, 20 million at most, as a `number`")
	fs.DurationVar(&s.Duration, "duration", 0, fmt.Sprintf(
		"time to spread the messages over, a `duration` such as 30s; 0: 24 s, or a second for each %s messages where that is longer", Thousands(s.Rate)))
	fs.Uint64Var(&s.Seed, "seed", 1, "`number` from which the messages and the times of freezes and kills are drawn")
	fs.BoolVar(&s.Naive, "naive", true, "play the baseline beside")
	fs.StringVar(&s.HTTP, "http", "", "`host:port`, such as :8080, to serve a status page of the fenced column at; its workers serve their metrics at the ports above")
	show.Flags(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return ErrUsage // reported by Parse
	}
	err := s.check(fs.Args())
	if err == nil {
		err = show.Check()
	}
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", fs.Name(), err)
		return ErrUsage
	}
	if s.Duration == 0 {
		s.Duration = max(shortest, time.Duration(s.Messages/s.Rate)*time.Second)
	}
	return nil
}

func (s *Settings) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; all settings are flags, see -help", rest[0])
	}
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"workers", s.Workers, 2, maxWorkers},
		{"partitions", s.Partitions, 1, 1000},
		{"messages", s.Messages, perPartition * s.Partitions, 20_000_000},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("-%s is %d; want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if s.Duration != 0 && s.Duration < time.Second {
		return fmt.Errorf("-duration is %v; want 0, or 1s and more", s.Duration)
	}
	if s.Database != "" && !IsPostgres(s.Database) {
		return errors.New("-database is no postgres:// URL")
	}
	if _, _, err := net.SplitHostPort(s.HTTP); err != nil && s.HTTP != "" {
		return fmt.Errorf("-http: %q is not host:port, such as :8080", s.HTTP)
	}
	return nil
}

// IsPostgres reports whether database is a PostgreSQL URL.
func IsPostgres(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}
