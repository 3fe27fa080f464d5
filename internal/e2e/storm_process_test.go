package e2e_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// stormEnv makes the test binary a worker process of TestRealStorms: a takeoverSpec in JSON. On its standard input it
// is told whom to suspect, and on its standard output it says whom it has suspected.
const stormEnv = "EPOCHFENCE_E2E_STORM"

// Lines of the standard input, of which the first is followed by a member id or by everybody.
const (
	suspects  = "suspect "
	everybody = "*"
	believes  = "believe"
)

// saidSuspected begins the lines of the standard output.
const saidSuspected = "suspected "

func stormMain(packed string) error {
	var s takeoverSpec
	if err := json.Unmarshal([]byte(packed), &s); err != nil {
		return err
	}
	eyes := &eyes{}
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			eyes.told(in.Text())
		}
		os.Exit(3) // whoever started us is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	source, err := kafkasource.New(kafkasource.Options{
		Group: s.Group, Topics: []string{s.Topic}, Logger: log,
		Client: []kgo.Opt{kgo.SeedBrokers(s.Kafka), kgo.ClientID(s.Name), balancers[s.Balancer]},
	})
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return err
	}
	if strings.Contains(s.Database, pooledMode) {
		neverCancels(config)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{Logger: log})
	if err != nil {
		return err
	}
	apply := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Exec(ctx, "insert into effect (partition, message_offset, worker) values ($1, $2, $3)", m.Partition.Number, m.Offset, s.Name)
		return err
	}
	return consumer.Run(ctx, source, misled{sink, eyes}, consumer.Each(apply), consumer.Options{Logger: log, Observe: func(e consumer.Event) {
		if e, ok := e.(consumer.Suspected); ok {
			fmt.Println(saidSuspected + e.String())
		}
	}})
}

var balancers = map[string]kgo.Opt{
	"range": kgo.Balancers(kgo.RangeBalancer()), "cooperative": kgo.Balancers(kgo.CooperativeStickyBalancer()), "KIP-848": kgo.ServerSideBalancer(),
}

// eyes are whom a process sees as silent, although they live.
type eyes struct {
	mu      sync.Mutex
	members map[string]bool
}

func (e *eyes) told(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if member, ok := strings.CutPrefix(line, suspects); ok && e.members != nil {
		e.members[member] = true
	} else if ok {
		e.members = map[string]bool{member: true}
	} else if line == believes {
		e.members = nil
	}
}

func (e *eyes) deceive(p operate.Peer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return p.Member != "" && (e.members[p.Member] || e.members[everybody])
}

// misled is a sink through which a process sees others that live as silent. What follows from that is the product's:
// its caps, the agreement in the database, the removal, and what becomes of who was removed.
type misled struct {
	*pgsink.Sink
	eyes *eyes
}

func (m misled) Attend(ctx context.Context, self operate.Peer) (operate.Vigil, error) {
	v, err := m.Sink.Attend(ctx, self)
	if err != nil {
		return nil, err
	}
	return &misledVigil{v, m.eyes, nil}, nil
}

type misledVigil struct {
	operate.Vigil
	eyes *eyes
	seen []operate.Peer // what the last look has really shown
}

func (v *misledVigil) Look(ctx context.Context, self operate.Peer) (operate.Look, error) {
	l, err := v.Vigil.Look(ctx, self)
	v.seen = append([]operate.Peer(nil), l.Peers...)
	for i, p := range l.Peers {
		if p.Run != self.Run && v.eyes.deceive(p) {
			l.Peers[i].Silent = 2*p.Patience + 1 // wrong suspicions double a patience
		}
	}
	return l, err
}

// Suspect asks for what the process believes, with the sign that it has really seen.
func (v *misledVigil) Suspect(ctx context.Context, by, p operate.Peer) (bool, error) {
	for _, shown := range v.seen {
		if shown.Run == p.Run {
			p = shown
		}
	}
	return v.Vigil.Suspect(ctx, by, p)
}

// pooledMode is the query mode in a URL that goes through PgBouncer.
const pooledMode = "default_query_exec_mode=exec"

// neverCancels withholds pgx's cancel requests, on which PgBouncer 1.18 to 1.20 may exit: pgbouncer/pgbouncer issue 822.
func neverCancels(c *pgxpool.Config) {
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return uncancelled{conn}, err
	}
}

type uncancelled struct{ net.Conn }

func (c uncancelled) Write(b []byte) (int, error) {
	const cancelRequest = 80877102
	if len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest {
		return 0, errors.New("cancel request withheld")
	}
	return c.Conn.Write(b)
}
