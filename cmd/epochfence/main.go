// Command epochfence shows and operates the consumers of a sink: fences, owners, lag, the audit
// log, dead letters and the outbox, in PostgreSQL, SQLite or a store, with messages in Kafka or
// NATS JetStream.
//
//	export EPOCHFENCE_DATABASE=postgres://… EPOCHFENCE_KAFKA=broker:9092
//	epochfence list
//	epochfence explain orders/3 --at 12:03
//	epochfence rewind orders/3 --to @-15m
//
// A command that writes only shows its plan, unless it has --execute and --reason. See
// docs/command-line.md.
//
// The file of a command reads its flags, asks package operate, and prints. Three interfaces
// hide the servers: database (postgres.go, sqldatabase.go, store.go) has the sink and its tables, broker
// (kafka.go, nats.go) has the ends of logs, and operate.Operator has the fences.
// findings.go decides what is wrong, view.go which state a partition has, act.go shows a plan first.
// What makes an action safe is in package operate and the sinks, not here.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file has the root command, the flags of all commands and their environment variables, and
// decides the exit code.

func main() {
	slog.SetDefault(quiet)
	os.Exit(interruptible(os.Args[1:]))
}

func interruptible(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, args, os.Getenv, os.Stdout, os.Stderr)
}

type app struct {
	getenv    func(string) string
	out, errs io.Writer
	flags     flags
	began     bool // the arguments were valid

	database database // set by open
	brokers  brokers
}

type flags struct {
	database, store                     string // one of them
	schema                              string
	kafka, kafkaConfig                  string
	nats, natsCreds, natsDomain, bucket string
	format                              string
	timeout                             time.Duration
}

func run(ctx context.Context, args []string, getenv func(string) string, out, errs io.Writer) int {
	a := &app{getenv: getenv, out: out, errs: errs}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	a.close()
	if err != nil && !a.began {
		err = usageError{err}
	}
	if err != nil && !errors.Is(err, errTrouble) && !isQuiet(err) {
		lines := []string{err.Error()}
		if !a.began { // cobra suggests other commands in lines of their own
			lines = strings.Split(strings.TrimSpace(strings.ReplaceAll(lines[0], "\t", "  ")), "\n")
		}
		for i := range lines {
			lines[i] = printable(lines[i])
		}
		fmt.Fprintln(errs, "epochfence:", strings.Join(lines, "\n"))
		if errors.As(err, new(usageError)) {
			fmt.Fprintln(errs, "See epochfence --help, or epochfence COMMAND --help.")
		}
	}
	return exitCode(err)
}

func (a *app) close() {
	if a.database != nil {
		a.database.close()
	}
	a.brokers.close()
}

func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "epochfence",
		Short: "See and steer the consumers of a sink",
		Long: `See and steer the consumers of a sink: its fences, owners, lag, audit log,
dead letters and outbox. The sink is in PostgreSQL, in SQLite or in a store, the
messages are in Kafka or NATS.

A partition is written as TOPIC/NUMBER, or GROUP/TOPIC/NUMBER where several
groups have it. Commands that change something show what they would do, and do
it with --execute. Operator actions also need --reason. Nobody has to stop the
group.

Printed times are in UTC, by the clock of the database, or with --store by
those of the processes.

` + exitCodes,
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.flags.check(a.getenv) },
	}
	c.SetUsageTemplate(usageOf(c.UsageTemplate()))
	a.flags.add(c)
	c.AddGroup(&cobra.Group{ID: "see", Title: "See:"}, &cobra.Group{ID: "steer", Title: "Steer:"},
		&cobra.Group{ID: "look", Title: "Look after:"}, &cobra.Group{ID: "set", Title: "Set up:"},
		&cobra.Group{ID: "lock", Title: "One process at a time:"})
	add := func(group string, cs ...*cobra.Command) {
		for _, sub := range cs {
			sub.GroupID = group
			c.AddCommand(sub)
		}
	}
	add("see", a.list(), a.describe(), a.owners(), a.history(), a.explain())
	add("steer", a.run(), a.rewind(), a.skip(), a.pause(), a.resume(), a.evict(), a.rebase(), a.deadLetters(), a.outbox())
	add("look", a.check(), a.doctor(), a.drill(), a.observe(), a.moveOver())
	add("set", a.migrate(), a.grants(), a.protect())
	add("lock", a.lock())
	a.note(c)
	return c
}

// note makes c and its subcommands record that they began. Errors before that are usage errors.
func (a *app) note(c *cobra.Command) {
	if do := c.RunE; do != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			a.began = true
			return do(c, args)
		}
	}
	for _, sub := range c.Commands() {
		a.note(sub)
	}
}

// usageOf wraps cobra's template at 80 columns, and leaves out the flags of all commands.
func usageOf(template string) string {
	return strings.NewReplacer(
		"{{.LocalFlags.FlagUsages |", "{{.LocalFlags.FlagUsagesWrapped 80 |",
		"Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}", "Flags for servers and the format: epochfence --help",
	).Replace(template)
}

func (f *flags) add(c *cobra.Command) {
	p := c.PersistentFlags()
	p.SortFlags = false
	p.StringVar(&f.database, "database", "", "the sink's database: postgres://…, mysql://… of MariaDB, or file:PATH of SQLite (EPOCHFENCE_DATABASE, DATABASE_URL)")
	p.StringVar(&f.store, "store", "", "the store of a cassink, instead of --database: redis://…, etcd://…, s3://…, see docs/command-line.md (EPOCHFENCE_STORE)")
	p.StringVar(&f.schema, "schema", "", "the sink's schema; in SQLite the prefix of its tables, in a store the prefix of its keys; epochfence if empty, in SQLite epochfence_ (EPOCHFENCE_SCHEMA)")
	p.StringVar(&f.kafka, "kafka", "", "brokers, HOST:PORT,… (EPOCHFENCE_KAFKA)")
	p.StringVar(&f.kafkaConfig, "kafka-config", "", "file with sasl.* and ssl.* as librdkafka names them (EPOCHFENCE_KAFKA_CONFIG)")
	p.StringVar(&f.nats, "nats", "", "servers, nats://HOST:PORT,… (EPOCHFENCE_NATS)")
	p.StringVar(&f.natsCreds, "nats-creds", "", "file with credentials (EPOCHFENCE_NATS_CREDS)")
	p.StringVar(&f.natsDomain, "nats-domain", "", "JetStream domain (EPOCHFENCE_NATS_DOMAIN)")
	p.StringVar(&f.bucket, "nats-bucket", "", "bucket of the leases; epochfence if empty (EPOCHFENCE_NATS_BUCKET)")
	p.StringVar(&f.format, "format", "table", "table or json")
	p.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long a server may take to be reached")
}

func (f *flags) check(getenv func(string) string) error {
	if err := f.checkSink(getenv); err != nil {
		return err
	}
	for _, v := range []struct {
		flag *string
		env  string
	}{
		{&f.schema, "EPOCHFENCE_SCHEMA"},
		{&f.kafka, "EPOCHFENCE_KAFKA"},
		{&f.kafkaConfig, "EPOCHFENCE_KAFKA_CONFIG"},
		{&f.nats, "EPOCHFENCE_NATS"},
		{&f.natsCreds, "EPOCHFENCE_NATS_CREDS"},
		{&f.natsDomain, "EPOCHFENCE_NATS_DOMAIN"},
		{&f.bucket, "EPOCHFENCE_NATS_BUCKET"},
	} {
		if *v.flag == "" {
			*v.flag = getenv(v.env)
		}
	}
	if f.bucket == "" {
		f.bucket = "epochfence"
	}
	if f.format != "table" && f.format != "json" {
		return usage("--format is %q; want table or json", f.format)
	}
	if f.timeout <= 0 || f.timeout > time.Hour {
		return usage("--timeout is %v; want up to 1h", f.timeout)
	}
	return nil
}

// checkSink looks for the database or the store where no flag says it.
func (f *flags) checkSink(getenv func(string) string) error {
	if f.database == "" && f.store == "" {
		f.database, f.store = getenv("EPOCHFENCE_DATABASE"), getenv("EPOCHFENCE_STORE")
	}
	if f.database == "" && f.store == "" {
		f.database = getenv("DATABASE_URL")
	}
	if f.database != "" && f.store != "" {
		return usage("--database and --store (EPOCHFENCE_DATABASE, EPOCHFENCE_STORE): the sink is in one of them, say one")
	}
	return nil
}

const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitTrouble = 3
	exitChanged = 4
	exitDoubt   = 5
)

const exitCodes = `Exit codes:
  0  it is done, or shown; check, doctor, drill and observe have found nothing;
     moveover says yes
  1  another error: no connection, a missing privilege, no such partition
  2  usage: a flag or an argument that makes no sense
  3  check, doctor, drill or observe has found trouble; doctor cannot reach a
     server or lacks a privilege; check cannot reach a broker or finds no such
     partition; moveover says no
  4  refused: what you saw has changed; look again, and decide again
  5  it is not known whether it was done; the message says how to find out
Of several acts that ended differently it is the highest. lock has its own.`

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

var errTrouble = errors.New("trouble was found")

func exitCode(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && !errors.Is(err, epoch.ErrInDoubt) {
		codes := []int{exitOK}
		for _, e := range joined.Unwrap() {
			codes = append(codes, exitCode(e))
		}
		return slices.Max(codes)
	}
	changed := func(e error) bool { return errors.Is(err, e) }
	var own exit
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, epoch.ErrInDoubt):
		return exitDoubt
	case slices.ContainsFunc([]error{operate.ErrChanged, epoch.ErrStale, epoch.ErrMoved, operate.ErrDeadLetterChanged}, changed):
		return exitChanged
	case errors.Is(err, errTrouble):
		return exitTrouble
	case errors.As(err, new(usageError)) || errors.Is(err, operate.ErrAct):
		return exitUsage
	default:
		return exitError
	}
}
