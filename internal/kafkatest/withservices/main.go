// Command withservices runs a command beside a real Apache Kafka and a real
// PostgreSQL of its own, which end with it:
//
//	go run ./internal/kafkatest/withservices sh -c \
//	  'go run ./examples/inventory -brokers "$EPOCHFENCE_KAFKA" -database "$EPOCHFENCE_POSTGRES"'
//
// Kafka's jars are in EPOCHFENCE_KAFKA_LIBS (see `make kafka`). Its exit status
// is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/kafkatest"
	"github.com/epochfence/epochfence/internal/pgtest"
)

const startLimit = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command []string) (err error) {
	libs := os.Getenv("EPOCHFENCE_KAFKA_LIBS")
	if len(command) == 0 || libs == "" {
		return errors.New("usage: EPOCHFENCE_KAFKA_LIBS=… withservices command [argument …]")
	}
	start, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	dir, err := os.MkdirTemp("", "withservices-")
	if err != nil {
		return fmt.Errorf("withservices: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kafka, err := kafkatest.New(start, libs, dir, kafkatest.Config{})
	if err != nil {
		return err
	}
	defer kafka.Kill()
	postgres, err := pgtest.Launch(start, pgtest.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()

	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "EPOCHFENCE_KAFKA="+kafka.Addr, "EPOCHFENCE_POSTGRES="+postgres.URL("postgres"))
	return cmd.Run()
}
