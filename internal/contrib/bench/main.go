package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) == 1 && args[0] == "variant" {
		return runVariant(ctx, os.Stdin, os.Stdout)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("row", "", "play the rows whose names match this regular expression")
	rounds := flags.Int("rounds", 9, "how often each variant of a row is run")
	ci := flags.Bool("ci", false, "play CI's rows and no others, on a database without fsync")
	out := flags.String("json", "", "write the figures to this file; with -row, its figures of other rows stay")
	page := flags.String("page", "", "write them to this file, too, for operators, as Markdown")
	profiles := flags.String("profiles", "", "write CPU and allocation profiles of the processes to this directory")
	against := flags.String("against", "", "fail if a figure is worse than in this file: a ratio of times by a fifth, one of processor time by four fifths, allocations by a tenth; where that is not clear, play up to four times the rounds")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 {
		return errors.New("bench: want flags alone, and at least one round")
	}
	if *ci && runtime.GOOS != "linux" {
		return errors.New("bench: -ci measures the time of processors, which it can on Linux alone")
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("bench: -row: %w", err)
	}
	if *profiles != "" {
		if err := os.MkdirAll(*profiles, 0o755); err != nil {
			return err
		}
	}
	all, more := rows(), func(p played) bool { return p.rounds < *rounds }
	if *ci {
		all = ciRows()
	}
	var before committed
	if *against != "" {
		if before, err = readCommitted(*against); err != nil {
			return err
		}
		more = func(p played) bool {
			return another(p.rounds, *rounds, func() bool { return before.unclear(p.results()) })
		}
	}
	s, err := startServices(ctx, *profiles, *ci)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	rs, err := s.playAll(ctx, all, wanted, more)
	rs.table(os.Stdout)
	if err != nil || len(rs) == 0 {
		return errors.Join(err, fmt.Errorf("bench: rows whose names match %q: %d figures, and nothing written", *only, len(rs)))
	}
	if *out != "" {
		if before, err := readResults(*out); err == nil && *only != "" {
			rs = rs.with(before, all)
		}
		if err := rs.write(*out); err != nil {
			return err
		}
	}
	if *page != "" {
		if err := s.writePage(ctx, rs, *page); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	if *against != "" {
		return before.compare(rs)
	}
	return nil
}

func (s *services) playAll(ctx context.Context, all []row, wanted *regexp.Regexp, more func(played) bool) (rs results, err error) {
	for _, r := range all {
		if !wanted.MatchString(r.name) {
			continue
		}
		p, err := s.play(ctx, r, more)
		if err != nil {
			return rs, err
		}
		rs = append(rs, p.results()...)
	}
	return rs, nil
}

// patience limits one process.
const patience = 5 * time.Minute

// played is the result of a row: the outcomes by variant, one for each round.
type played struct {
	row      row
	rounds   int
	outcomes map[string][]outcome
}

// play runs each variant of the row once in each round, as long as more wants another round. Each
// round begins with another variant.
func (s *services) play(ctx context.Context, r row, more func(played) bool) (p played, err error) {
	p = played{row: r, outcomes: map[string][]outcome{}}
	j, err := s.prepare(ctx, r)
	if err != nil {
		return p, fmt.Errorf("bench: %s: %w", r.name, err)
	}
	if r.away > 0 {
		is, end, err := away(ctx, j.Database, r.away)
		if err != nil {
			return p, fmt.Errorf("bench: %s: %w", r.name, err)
		}
		defer func() { err = errors.Join(err, end()) }()
		j.Database = is
	}
	names := r.variants()
	for ; more(p); p.rounds++ {
		for i := range names {
			j.Variant = names[(p.rounds+i)%len(names)]
			o, err := undoubled(j.Variant, func() (outcome, error) { return s.once(ctx, r, j) })
			if err != nil {
				return p, fmt.Errorf("bench: %s: %w", r.name, err)
			}
			p.outcomes[j.Variant] = append(p.outcomes[j.Variant], o)
		}
		fmt.Fprintf(os.Stderr, "%s: round %d\n", r.name, p.rounds+1)
	}
	return p, nil
}

// once runs one variant in a process of its own, with its own tables and group, and checks the
// written rows.
func (s *services) once(ctx context.Context, r row, j job) (o outcome, err error) {
	s.played++
	j.Group = fmt.Sprintf("group%d", s.played)
	j.Table = fmt.Sprintf("effects%d", s.played)
	if s.profiles != "" {
		j.Profile = filepath.Join(s.profiles, fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(r.name, "/", "-"), strings.ReplaceAll(j.Variant, "/", "-"), s.played))
	}
	if j.Rate > 0 {
		j.Topic = fmt.Sprintf("%s-%d", j.Topic, s.played)
		if err := produceKafka(ctx, j.Kafka, j); err != nil {
			return outcome{}, err
		}
	}
	if err := createTables(ctx, s.pool, j.Table); err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, dropTables(ctx, s.pool, j.Table)) }()
	if o, err = spawn(ctx, j); err != nil {
		return o, err
	}
	if r.effects && writes(j.Variant) {
		if err := check(ctx, s.pool, j.Table, o.Messages); err != nil {
			return o, fmt.Errorf("%s: %w", j.Variant, err)
		}
	}
	return o, nil
}

// writes reports whether a variant writes to the database, although the others of its row do.
func writes(variant string) bool { return variant != "nats/source" }

func spawn(ctx context.Context, j job) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	in, err := json.Marshal(j)
	if err != nil {
		return o, err
	}
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, self, "variant")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return o, fmt.Errorf("%s: %w", j.Variant, err)
	}
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return o, fmt.Errorf("%s: it said %q: %w", j.Variant, out.String(), err)
	}
	return o, nil
}

var errDoubled = errors.New("some were applied more than once")

// atLeastOnce are the variants without a guard that read as members of a group. On a starved
// machine they lose their partitions and apply uncommitted messages again. That is their nature,
// and no fault of the run.
var atLeastOnce = []string{
	"kafka/set", "kafka/set" + background, "kafka/each", "kafka/each" + background, "kafka/piped", "nats/set",
}

// attempts limits the attempts at such a variant before the machine counts as unfit.
const attempts = 4

// undoubled runs a variant. It repeats a variant without a guard that has applied messages twice,
// because its time includes some work twice. It returns any other error at once.
func undoubled(variant string, once func() (outcome, error)) (o outcome, err error) {
	for doubled := 0; ; doubled++ {
		o, err = once()
		if !errors.Is(err, errDoubled) || !slices.Contains(atLeastOnce, variant) {
			return o, err
		}
		if doubled == attempts-1 {
			return o, fmt.Errorf("%w, in each of %d attempts: the machine is too busy to measure on", err, attempts)
		}
		fmt.Fprintf(os.Stderr, "%v: it has no guard, and is run again\n", err)
	}
}
