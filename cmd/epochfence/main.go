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
// hide the servers: database (postgres.go, sqlite.go, store.go) has the sink and its tables, broker
// (kafka.go, nats.go) has the ends of logs, and operate.Operator has the fences.
// findings.go decides what is wrong, view.go which state a partition has, exit.go the exit code.
// What makes an action safe is in package operate and the sinks, not here.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	slog.SetDefault(quiet)
	os.Exit(interruptible(os.Args[1:]))
}

func interruptible(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, args, os.Getenv, os.Stdout, os.Stderr)
}
