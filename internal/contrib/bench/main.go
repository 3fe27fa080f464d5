package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
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
	against := flags.String("against", "", "fail if a figure is worse than in this file: a ratio of times a fifth, one of processor time a third, allocations a tenth; where that is not clear, play up to four times the rounds")
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
