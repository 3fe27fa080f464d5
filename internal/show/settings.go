package show

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Settings are the flags of every show.
type Settings struct {
	Database   string // a postgres:// URL or the path of a new SQLite file; "" means a temporary one
	Workers    int
	Partitions int
	Messages   int
	Duration   time.Duration
	Seed       uint64
	Naive      bool
	Keep       bool
	HTTP       string // host:port of the status page; "" means none
}

// The limits protect the machine from a mistyped flag.
const (
	maxWorkers    = 64
	maxPartitions = 1000
	maxMessages   = 20_000_000
	maxDuration   = 24 * time.Hour

	// perPartition is the minimum of messages, so that each victim gets a message.
	perPartition = 25

	// shortest is the default minimum duration of a load: enough for a freeze, a kill and another
	// freeze.
	shortest = 24 * time.Second
)

// ErrUsage is returned when the flags are wrong. The mistake has been printed.
var ErrUsage = errors.New("usage")

// ParseFlags adds the flags of s to fs and parses args. Messages is the default of its flag. The
// load's default duration is Messages at rate messages per second. check checks the show's own
// flags in fs. ParseFlags returns [flag.ErrHelp] or [ErrUsage] after writing the help or the
// mistake to out.
func (s *Settings) ParseFlags(fs *flag.FlagSet, args []string, out io.Writer, rate int, check func() error) error {
	fs.SetOutput(out)
	fs.StringVar(&s.Database, "database", "", "postgres://… `URL`, or the path of a new SQLite file; empty: SQLite in a temporary directory")
	fs.IntVar(&s.Workers, "workers", 3, "worker processes of each column, 2 to 64, as a `number`")
	fs.IntVar(&s.Partitions, "partitions", 4, "partitions of the messages, 1 to 1000, as a `number`")
	fs.IntVar(&s.Messages, "messages", s.Messages, "messages of each column, 25 for each partition at least, 20 million at most, as a `number`")
	fs.DurationVar(&s.Duration, "duration", 0, fmt.Sprintf(
		"time to spread the messages over, a `duration` such as 30s; 0: 24 s, or a second for each %s messages where that is longer", Thousands(rate)))
	fs.Uint64Var(&s.Seed, "seed", 1, "`number` from which messages, freezes and kills are drawn")
	fs.BoolVar(&s.Naive, "naive", true, "play the baseline beside")
	fs.BoolVar(&s.Keep, "keep", false, "leave what the broker and the database have in place afterwards, and say where")
	fs.StringVar(&s.HTTP, "http", "", "`host:port`, such as :8080, to serve a status page of the fenced column at, and its /metrics; empty: none")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return ErrUsage // reported by Parse
	}
	err := s.check(fs.Args())
	if err == nil {
		err = check()
	}
	if err == nil {
		err = s.checkDatabase()
	}
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", fs.Name(), err)
		return ErrUsage
	}
	if s.Duration == 0 {
		s.Duration = max(shortest, time.Duration(s.Messages/rate)*time.Second)
	}
	return nil
}

func (s *Settings) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; all settings are flags, see -help", rest[0])
	}
	for _, f := range []struct {
		name     string
		v        int
		min, max int
	}{
		{"workers", s.Workers, 2, maxWorkers},
		{"partitions", s.Partitions, 1, maxPartitions},
		{"messages", s.Messages, 1, maxMessages},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("-%s is %d; want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if need := perPartition * s.Partitions; s.Messages < need {
		return fmt.Errorf("-messages is %d; %d partitions need at least %d, so that each worker has one to be struck at", s.Messages, s.Partitions, need)
	}
	if s.Duration != 0 && (s.Duration < time.Second || s.Duration > maxDuration) {
		return fmt.Errorf("-duration is %v; want 0, or 1s to %v", s.Duration, maxDuration)
	}
	return nil
}

func (s *Settings) checkDatabase() error {
	switch {
	case s.Database == "" || IsPostgres(s.Database):
		return nil
	case strings.Contains(s.Database, "://"):
		return errors.New("-database is neither a postgres:// URL nor the path of a SQLite file")
	}
	path, err := filepath.Abs(s.Database)
	if err != nil {
		return fmt.Errorf("-database: %w", err)
	}
	s.Database = path
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("-database: %w", err)
	}
	for _, column := range []string{Fence, Baseline} {
		path := s.DatabaseOf(column)
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("-database: %s exists; the show writes a new file only", path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("-database: %w", err)
		}
	}
	return nil
}

// DatabaseOf returns the database of a column: in PostgreSQL the same URL (each column has its own
// schema), in SQLite the named file or one beside it.
func (s *Settings) DatabaseOf(column string) string {
	if column == Baseline && !IsPostgres(s.Database) {
		return s.Database + ".baseline"
	}
	return s.Database
}
