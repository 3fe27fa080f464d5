// Command withservices runs a command with a real Apache Kafka and a real PostgreSQL of its own,
// which end with the command:
//
//	go run ./internal/servers/kafkatest/withservices sh -c \
//	  'go run ./examples/inventory -brokers "$EPOCHFENCE_KAFKA" -database "$EPOCHFENCE_DATABASE"'
//
// EPOCHFENCE_KAFKA_LIBS is the directory of Kafka's jars (see `make kafka`). The exit code is the
// command's.
//
// Without a command (`make services`) it makes the topics of docs/start.md and prints the addresses. It sends
// each line of its input to one topic, and prints what a read_committed reader finds in another, until it is
// interrupted.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
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
	if libs == "" {
		return errors.New("withservices: EPOCHFENCE_KAFKA_LIBS does not say where Kafka's jars are: use make services, which fetches them")
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

	if len(command) == 0 {
		return serve(ctx, kafka.Addr, postgres.URL("postgres"))
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "EPOCHFENCE_KAFKA="+kafka.Addr, "EPOCHFENCE_DATABASE="+postgres.URL("postgres"))
	return cmd.Run()
}

const topic, onward, partitions = "reservations", "stock", 4 // as in docs/start.md

func serve(ctx context.Context, kafka, postgres string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka), kgo.DefaultProduceTopic(topic), kgo.ConsumeTopics(onward), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return fmt.Errorf("withservices: %w", err)
	}
	defer client.Close()
	if made, err := kadm.NewClient(client).CreateTopics(ctx, partitions, 1, nil, topic, onward, "epochfence-positions"); err != nil || made.Error() != nil {
		return fmt.Errorf("withservices: create topics: %w", errors.Join(err, made.Error()))
	}
	fmt.Printf("export KAFKA=%s\nexport DATABASE_URL='%s'\n", kafka, postgres)
	fmt.Fprintf(os.Stderr, "Ctrl-C stops both and deletes their data. Each line typed here becomes a message of topic %s, which has %d partitions.\n", topic, partitions)
	go func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { fmt.Printf("%s: %s\n", onward, r.Value) })
		}
	}()
	typed := make(chan []byte)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			typed <- bytes.Clone(lines.Bytes())
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-typed:
			if err := client.ProduceSync(ctx, &kgo.Record{Value: line}).FirstErr(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("withservices: send to topic %s: %w", topic, err)
			}
		}
	}
}
