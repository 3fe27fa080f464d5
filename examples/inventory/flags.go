package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// settings are the flags.
type settings struct {
	brokers    []string // none means a fake one
	database   string   // none means SQLite in a temporary directory
	workers    int
	partitions int
	messages   int
	duration   time.Duration
	seed       uint64
	naive      bool
	keep       bool

	session time.Duration // of the group's members
}

// The limits keep a mistyped flag from taking the machine down.
const (
	maxWorkers    = 64
	maxPartitions = 1000
	maxMessages   = 20_000_000
	maxDuration   = 24 * time.Hour

	// perPartition messages at least, so that whoever is to be struck at a
	// message gets one.
	perPartition = 25

	// kafkaMinSession is what a Kafka broker allows unless told otherwise
	// (group.min.session.timeout.ms).
	kafkaMinSession = 6 * time.Second
)

// errUsage says that the flags are wrong and that this was reported.
var errUsage = errors.New("usage")

// parseFlags returns [flag.ErrHelp] or errUsage after writing what is to be said.
func parseFlags(args []string, out io.Writer) (settings, error) {
	s := settings{session: kafkaMinSession}
	fs := flag.NewFlagSet("inventory", flag.ContinueOnError)
	fs.SetOutput(out)
	brokers := fs.String("brokers", "", "Kafka's `host:port`, several with commas; empty: a fake broker in this process")
	fs.StringVar(&s.database, "database", "", "postgres://… `URL`, or the path of a new SQLite file; empty: SQLite in a temporary directory")
	fs.IntVar(&s.workers, "workers", 3, "worker processes of each column, `2` to 64")
	fs.IntVar(&s.partitions, "partitions", 4, "partitions of each topic, `1` to 1000")
	fs.IntVar(&s.messages, "messages", 50_000, "messages of each column, 25 for each partition at least, 20 million at most, as a `number`")
	fs.DurationVar(&s.duration, "duration", 0, "time to spread the messages over, such as `30s`; 0: 24 s, or a second for each 8,000 messages where that is longer")
	fs.Uint64Var(&s.seed, "seed", 1, "`number` from which messages, freezes and kills are drawn")
	fs.BoolVar(&s.naive, "naive", true, "play the usual code beside")
	fs.BoolVar(&s.keep, "keep", false, "leave topics and tables in place afterwards, and say where")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return s, err
		}
		return s, errUsage // reported by Parse
	}
	err := s.check(*brokers, fs.Args())
	if err != nil {
		fmt.Fprintf(out, "inventory: %v\n", err)
		return s, errUsage
	}
	if s.duration == 0 {
		s.duration = max(24*time.Second, time.Duration(s.messages/8000)*time.Second)
	}
	return s, nil
}

func (s *settings) check(brokers string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; all settings are flags, see -help", rest[0])
	}
	for _, f := range []struct {
		name     string
		v        int
		min, max int
	}{
		{"workers", s.workers, 2, maxWorkers},
		{"partitions", s.partitions, 1, maxPartitions},
		{"messages", s.messages, 1, maxMessages},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("-%s is %d; want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if need := perPartition * s.partitions; s.messages < need {
		return fmt.Errorf("-messages is %d; %d partitions need at least %d, so that each worker has one to be struck at", s.messages, s.partitions, need)
	}
	if s.duration != 0 && (s.duration < time.Second || s.duration > maxDuration) {
		return fmt.Errorf("-duration is %v; want 0, or 1s to %v", s.duration, maxDuration)
	}
	if brokers != "" {
		s.brokers = strings.Split(brokers, ",")
		for i, b := range s.brokers {
			b = strings.TrimSpace(b)
			if err := checkBroker(b); err != nil {
				return fmt.Errorf("-brokers: %w", err)
			}
			s.brokers[i] = b
		}
	}
	return s.checkDatabase()
}

func checkBroker(b string) error {
	host, port, err := net.SplitHostPort(b)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not host:port, such as 127.0.0.1:9092", b)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q: the port is not a number from 1 to 65535", b)
	}
	return nil
}

func (s *settings) checkDatabase() error {
	switch {
	case s.database == "" || isPostgres(s.database):
		return nil
	case strings.Contains(s.database, "://"):
		return errors.New("-database is neither a postgres:// URL nor the path of a SQLite file")
	}
	path, err := filepath.Abs(s.database)
	if err != nil {
		return fmt.Errorf("-database: %w", err)
	}
	s.database = path
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("-database: %w", err)
	}
	for _, side := range []string{fenced, usual} {
		path := sqlitePath(s.database, side)
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("-database: %s exists; the show writes a new file only", path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("-database: %w", err)
		}
	}
	return nil
}

func isPostgres(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}

// sqlitePath is the file of one column: the path itself, and one beside it.
func sqlitePath(path, side string) string {
	if side == usual {
		return path + ".usual"
	}
	return path
}
