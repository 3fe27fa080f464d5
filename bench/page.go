package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"text/template"
)

type machine struct {
	CPU      string
	Cores    int
	Go       string
	Postgres string
	Modules  []string // of the compared libraries, with versions
}

func (s *services) machine(ctx context.Context) (m machine, err error) {
	m = machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil { // on Linux
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/jackc/pgx/v5", "github.com/twmb/franz-go", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2",
				"github.com/segmentio/kafka-go", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-kafka/v3":
				m.Modules = append(m.Modules, strings.TrimPrefix(d.Path, "github.com/")+" "+d.Version)
			}
		}
	}
	return m, s.pool.QueryRow(ctx, "select split_part(version(), ' on ', 1)").Scan(&m.Postgres)
}

var page = template.Must(template.New("page").Parse(`# What it costs

What epochfence does in a second, beside what people write by hand for the same work. ` + "`make performance`" + ` measures it and
writes this page; ` + "`make bench`" + ` measures alone.

Each variant runs in a process of its own, on the same servers, with fsync on. The variants of a row take turns within each round. A
figure is the median of the ratios of {{.Rounds}} rounds, with quartiles. For a throughput, a ratio above 1 means that the first variant is faster. For a latency (p50, p99),
messages, goroutines or memory, it means that the first one needs more. After each process the rows are counted and added up; one that has written a message twice, or not at all, fails the run, but for a peer without a guard that has
written one twice after a rebalance, which is run again.

The aim is the ratio that we want to reach. No check fails below it: ` + "`" + `make bench-ci` + "`" + ` compares with bench/ratios.json. [What holds it](#what-holds-it) says why a figure is below its aim.

| work | figure | median | quartiles | aim | ours | peer's |
|---|---|---|---|---|---|---|
{{range .Results -}}
| {{.What}} | {{.Ours}} ÷ {{.Peer}} | **{{printf "%.2f" .Ratio}}** | {{printf "%.2f to %.2f" .Low .High}} | {{if .Reach}}{{printf "%.2f" .Reach}}{{else}}–{{end}} | {{.Of.Text .Value}} | {{.Of.Text .PeerValue}} |
{{end}}
{{range .Charts}}![{{.Title}}]({{.File}})

{{end -}}
## What holds it

What [the profiles](profiles.md) say, where a figure is below its aim:

- *A transaction.* The process works for 3 to 5 % of the time and waits for PostgreSQL for the rest. What is left of the fence's price is there: 6 µs for settings
  and the lock, 15 µs for the update of the fence's row, 7 µs for the function around it, of the about 60 µs that the statements of a transaction of one message take in the server. Round trips and the flush come on top.
  The default mode needs two round trips and plain needs three, so the default mode is faster over a network.
- *Kafka to PostgreSQL with a set for each transaction.* Collecting garbage takes a third of the processor, and the copies of messages that a handler may keep are 31 % of
  the bytes that are allocated.
- *A statement for each message.* One at a time, both wait for a round trip for each message. Queued, it is at 0.84 of a pipeline by hand without a guard, in processor
  time. How far above one statement at a time that is depends on what a round trip takes, which is little where the server is on the same machine.
- *A database 1 ms away.* In the default mode a transaction has a round trip for each of its partitions, as each handler sends a statement of its own and waits for it; a consumer
  by hand has one statement for all. Four committers wait side by side. In the pipelined mode the whole transaction is one round trip: with four committers it has 0.87.
  On one machine the default mode has 0.95. Sending a transaction before the answer to the one before has arrived is not implemented. It could close the gap of a single partition, which has
  0.79 at 1 ms in the pipelined mode, and 0.84 on one machine in the default mode.

The variants:

| name | what it is |
|---|---|
| fenced, queued | a pgsink transaction with one statement for all its messages, in the default mode and in the pipelined mode |
| plain | the same transaction without any guard |
| copy | COPY into the same table, without a transaction of one's own |
| dedupe | the same with a table of ids, written in the same statement |
| kafka/set, nats/set | a consumer by hand: a poll, a transaction with one statement, a commit of the offsets. No guard |
| kafka/set-dedupe | the same with a table of ids |
| kafka/each | the same with one statement for each message |
| kafka/each-dedupe | the same with a table of ids, and so with two statements for each message |
| kafka/watermill | a handler of Watermill's router, which for each message has a transaction with those two statements; one message of each partition at a time |
| kafka/kafka-go | kafka/set with kafka-go in place of franz-go, up to 4,096 messages a transaction, and a commit of the offsets once a second |
| kafka/run-batches, nats/run-batches | consumer.Run with consumer.Batches and default options |
| kafka/run-batches-queued | the same in the sink's pipelined mode |
| kafka/run-batches-4, kafka/run-batches-queued-4 | the same two with four committers |
| kafka/run-observed | the same with an observer of package ops/stats, read once a second |
| kafka/run-each, kafka/run-queued | consumer.Run with consumer.Each, in the sink's default mode and in its pipelined mode |
| kafka/read, nats/read | the client library alone: franz-go, or a JetStream pull consumer for each partition |
| kafka/source, nats/source | kafkasource or natssource alone |
| nats/idle-run, nats/idle-pull | consumer.Run with default options and a sink in memory, or a JetStream pull consumer for each partition, once everything is applied: what comes and goes on the connection, and what a partition takes up |
| kafka/hot, kafka/even | consumer.Run with a sink in memory and 1,024 messages a transaction: all but one in sixteen messages in one partition, or all partitions alike |
| kafka/join | a franz-go client until it has been told its partitions |
| kafka/claim-first, kafka/claim-again | consumer.Run until it has claimed all partitions for the first time, or when it is started again |

Made on {{.Machine.Cores}} cores of {{.Machine.CPU}}, which the servers and the variants share, with {{.Machine.Postgres}}, {{.Machine.Go}}{{range .Machine.Modules}}, {{.}}{{end}}.
`))

type drawing struct{ rows, Title, File string }

func (s *services) writePage(ctx context.Context, rs results, file string) error {
	m, err := s.machine(ctx)
	if err != nil {
		return err
	}
	var charts []drawing
	base := strings.TrimSuffix(filepath.Base(file), ".md")
	for _, d := range []drawing{
		{"fence/batch", "A pgsink transaction, by messages in it, ÷ the same without a guard", base + "-fence.svg"},
		{"kafka/", "From Kafka", base + "-kafka.svg"},
		{"nats/", "From JetStream", base + "-nats.svg"},
	} {
		drawn, err := rs.writeChart(d.rows, d.Title, filepath.Join(filepath.Dir(file), d.File))
		if err != nil {
			return err
		}
		if drawn {
			charts = append(charts, d)
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(page.Execute(f, map[string]any{"Results": rs, "Machine": m, "Rounds": rs.rounds(), "Charts": charts}), f.Close())
}
