// Command jobpeers runs a nightly job under nine schedulers, freezes the process that works until
// another one has done the work, and counts what is in the database. It is behind the comparison in
// docs/move-over.md.
//
//	go run . [-trials 3] [-story name] [-verbose] [peer ...]
//
// Each pod is a process of its own, and a freeze is a SIGSTOP. It needs PostgreSQL and redis-server,
// and the command line of Temporal in EPOCHFENCE_TEMPORAL for its row.
//
// The page has the counts of 2026-11-27: three rounds of three trials, on one busy machine. Checks had
// two rounds of three trials for each scenario, and fences one. client-go had a small server that keeps
// Leases and refuses stale updates. Temporal ran its development server, DBOS ran without Conductor, and
// pg_cron was Debian 12's. controller-runtime 0.24.1, which uses client-go, had 0 of 9 under its fence.
// Doubled trials by round, for the scenarios in the order of the columns:
//
//	gocron      3+3+3, 3+3+3, 3+3+3, 3+3+3
//	client-go   3+3+3, 3+3+3, 3+3+3, 2+3+3
//	asynq       3+3+3, 0+0+0, 3+2+2, 2+2+2; nine tasks returned an error of a COMMIT that had happened
//	Temporal    3+3+3, 0+0+0, 2+1+3, 1+1+2
//	River       3+3+3, 0+0+0, 0+0+0, 3+1+0
//	DBOS        3+3+3, then none
//	epochfence  none
//	pg_cron     none; killed in a run 6 times, frozen 5, away 5, a run of 90 s under a tick a minute 5
//
// For "thawed while the next run works", the first round thawed 0.3 s sooner.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// peer is a scheduler.
type peer struct {
	run   func(context.Context, *pod) error   // one pod, until the context ends
	setUp func(context.Context, config) error // before the first pod. Optional.

	// beside is a process that enqueues ticks and does no work, where the peer wants one of it.
	beside func(context.Context, *pod) error

	// replaced is whether nobody takes over until a pod of the same name is started.
	replaced bool
	forms    []string
	needs    func(*servers) string // what is missing
}

// The forms of a job. In the plain one, a job ignores its context and the peer has the settings of its
// first example. In the safe one, it has what the peer's documentation has to make it safe. In the
// checked one, the job also looks in its transaction, last, whether another run has done the work. In
// the fenced one, the peer's lock is a lease of ours, and the job commits through it.
const (
	plain   = "plain"
	safe    = "safe"
	checked = "checked"
	fenced  = "fenced"
)

var peers = map[string]peer{
	"gocron":     {run: runGocron, setUp: setUpFences, forms: []string{plain, safe, fenced}},
	"client-go":  {run: runLeader, setUp: setUpFences, forms: []string{plain, safe, fenced}},
	"controller": {run: runController, setUp: setUpFences, forms: []string{fenced}},
	"river":      {run: runRiver, setUp: setUpRiver, forms: []string{plain, safe, checked}},
	"asynq":      {run: runAsynq, beside: runAsynqScheduler, forms: []string{plain, safe, checked}},
	"dbos":       {run: runDBOS, setUp: setUpDBOS, replaced: true, forms: []string{plain, safe}},
	"temporal":   {run: runTemporal, setUp: setUpTemporal, forms: []string{plain, safe, checked}, needs: (*servers).withoutTemporal},
	"epochfence": {run: runSchedule, setUp: setUpFences, forms: []string{safe}},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if text := os.Getenv(podEnv); text != "" {
		exit(servePod(ctx, text))
		return
	}
	only := flag.String("story", "", "the story to play, such as \"before COMMIT\"; empty for all")
	trials := flag.Int("trials", 3, "how often each story is played")
	at := flag.Int("parallel", 5, "how many are played at a time")
	verbose := flag.Bool("verbose", false, "print all that the pods say")
	flag.Parse()
	exit(play(ctx, flag.Args(), *only, *trials, *at, *verbose))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "jobpeers:", err)
		os.Exit(1)
	}
}

type show struct {
	name  string
	peer  peer
	story story
	form  string
	trial int
	said  string
	err   error
}

func play(ctx context.Context, names []string, only string, trials, at int, verbose bool) error {
	if len(names) == 0 {
		names = append(slices.Sorted(maps.Keys(peers)), "pg_cron")
	}
	s, err := serve(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	var shows []*show
	cron := false
	for _, name := range names {
		p, known := peers[name]
		switch {
		case name == "pg_cron":
			cron = true
			continue
		case !known:
			return fmt.Errorf("there is no peer %q; want some of %v and pg_cron", name, slices.Sorted(maps.Keys(peers)))
		case p.needs != nil && p.needs(s) != "":
			fmt.Printf("%s: not tried: %s\n", name, p.needs(s))
			continue
		}
		for _, form := range p.forms {
			for _, st := range stories {
				if !st.in(form) || only != "" && only != st.name {
					continue
				}
				for trial := range trials {
					shows = append(shows, &show{name: name, peer: p, story: st, form: form, trial: trial})
				}
			}
		}
	}
	var all sync.WaitGroup
	turn := make(chan struct{}, at)
	var cronSaid string
	var cronErr error
	if cron {
		all.Go(func() { cronSaid, cronErr = playPgCron(ctx, only) })
	}
	for _, sh := range shows {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			sh.said, sh.err = s.play(ctx, sh, verbose)
			fmt.Fprintf(os.Stderr, "%s %s %s %d: %s %v\n", sh.name, sh.form, sh.story.name, sh.trial+1, sh.said, sh.err)
		})
	}
	all.Wait()
	report(shows)
	if cron {
		fmt.Printf("pg_cron:\n%s\n", cronSaid)
	}
	failed := cronErr
	for _, sh := range shows {
		if sh.err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s, %s, %s: %w", sh.name, sh.form, sh.story.name, sh.err))
		}
	}
	return failed
}

// report prints a line for each story, with what its trials have in common.
func report(shows []*show) {
	type key struct{ name, form, story string }
	said := map[key][]string{}
	var order []key
	for _, sh := range shows {
		k := key{sh.name, sh.form, sh.story.name}
		if said[k] == nil {
			order = append(order, k)
		}
		if sh.err != nil {
			sh.said = "failed: " + sh.err.Error()
		}
		said[k] = append(said[k], sh.said)
	}
	for _, k := range order {
		fmt.Printf("%-11s %-7s %-14s %s\n", k.name, k.form, k.story, strings.Join(said[k], "\n"+strings.Repeat(" ", 35)))
	}
}
