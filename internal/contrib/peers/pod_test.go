package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const podEnv = "EPOCHFENCE_PEERS_WORKER"

const (
	period = 3 * time.Second         // between two ticks: the night of these trials
	long   = 1200 * time.Millisecond // what the work of a run takes, or of the message that freezes
	hard   = 5                       // that message
)

// config is what a worker is told.
type config struct {
	Row, Name string
	Beside    bool
	ID        string // of the trial; also the topic and the group
	Freeze    string // where the first worker that comes there freezes itself

	Database string // URL
	Redis    string // address
	RedisDB  int
	Leases   string // URL of the API server
	Temporal string // address
	Etcd     string // address
	Kafka    string // address
}

// pod is this process.
type pod struct {
	config
	db *pgxpool.Pool
}

func servePod(ctx context.Context, text string) error {
	p := &pod{}
	if err := json.Unmarshal([]byte(text), &p.config); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	var err error
	if p.db, err = pgxpool.New(ctx, p.Database); err != nil {
		return err
	}
	defer p.db.Close()
	if p.Beside {
		return rowOf(p.Row).beside(ctx, p)
	}
	return rowOf(p.Row).run(ctx, p)
}

// An item is a customer who gets one invoice, or a message. At the end each has one effect.
const schema = `create table item (id int primary key);
	insert into item select generate_series(1, 20);
	create table effect (item int not null, pod text, tick text, at timestamptz not null default clock_timestamp());
	create table done (id text primary key);
	create table position (one boolean primary key default true, next bigint not null);
	create table run (id bigint generated always as identity, pod text, tick text, began timestamptz not null default clock_timestamp(), ended timestamptz);
	create table frozen (one boolean primary key default true, pod text, at timestamptz not null default clock_timestamp())`

// job is the nightly job: it finds out whom to bill, works, and writes the invoices in a transaction,
// whose last statement is the check. The context is the scheduler's.
func (p *pod) job(ctx context.Context, tick string, last check) error {
	return p.observed(ctx, tick, func(ctx context.Context) error {
		due, err := p.work(ctx, p.db)
		if err != nil {
			return err
		}
		return p.committed(ctx, func(tx pgx.Tx) error {
			if err := p.write(ctx, in(tx), due, tick); err != nil || last == nil {
				return err
			}
			if err := last(ctx, tx); err != nil {
				return fmt.Errorf("check: %w", err)
			}
			return nil
		})
	})
}

// committed is a transaction, which may freeze when nothing is left but its COMMIT.
func (p *pod) committed(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		if err := do(tx); err != nil {
			return err
		}
		return p.freeze(ctx, beforeCommit)
	})
}

type check func(context.Context, pgx.Tx) error

// once is a check by a table of ids.
func once(id string) check {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into done (id) values ($1)`, id)
		return err
	}
}

// observed writes down when a run began and ended, outside of its transactions.
func (p *pod) observed(ctx context.Context, tick string, do func(context.Context) error) error {
	book := context.WithoutCancel(ctx)
	var id int64
	if err := p.db.QueryRow(book, `insert into run (pod, tick) values ($1, $2) returning id`, p.Name, tick).Scan(&id); err != nil {
		return err
	}
	err := do(ctx)
	p.tell(event{Kind: "returned", Tick: tick, Error: text(err)})
	_, broken := p.db.Exec(book, `update run set ended = clock_timestamp() where id = $1`, id)
	if broken != nil {
		return broken
	}
	return err
}

type querier interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

// work reads who is due, and takes its time.
func (p *pod) work(ctx context.Context, q querier) ([]int32, error) {
	rows, err := q.Query(ctx, `select id from item where not exists (select from effect where item = id) order by id`)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return due, p.toil(ctx)
}

func (p *pod) toil(ctx context.Context) error {
	for half := range 2 {
		select {
		case <-time.After(long / 2):
		case <-ctx.Done():
			return fmt.Errorf("work: %w", context.Cause(ctx))
		}
		if half == 0 {
			if err := p.freeze(ctx, inWork); err != nil {
				return err
			}
		}
	}
	return nil
}

// statement executes a statement in a transaction.
type statement func(ctx context.Context, sql string, args ...any) error

func in(tx interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}) statement {
	return func(ctx context.Context, sql string, args ...any) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
}

func (p *pod) write(ctx context.Context, do statement, items []int32, tick string) error {
	if err := do(ctx, `insert into effect (item, pod, tick) select unnest($1::int[]), $2, $3`, items, p.Name, tick); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return p.freeze(ctx, written)
}

// freeze stops this process at a place, if it is the first one there. The stage thaws it.
func (p *pod) freeze(ctx context.Context, here string) error {
	if p.Freeze != here {
		return nil
	}
	done, err := p.db.Exec(context.WithoutCancel(ctx), `insert into frozen (pod) values ($1) on conflict do nothing`, p.Name)
	if err != nil || done.RowsAffected() == 0 {
		return err
	}
	p.tell(event{Kind: "frozen"})
	return stopHere()
}

// stopHere sends the signal to the calling thread, so that it executes nothing more: a signal to the
// process may be delivered to another thread first.
func stopHere() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, failed := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
	if failed != 0 {
		return fmt.Errorf("stop this process: %w", failed)
	}
	return nil
}

// event is what a worker tells the stage, in a line.
type event struct {
	Kind  string
	Tick  string `json:",omitempty"`
	Error string `json:",omitempty"`
}

const eventMark = "\x01"

var telling sync.Mutex

func (p *pod) tell(e event) {
	telling.Lock()
	defer telling.Unlock()
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	fmt.Println(eventMark + string(line))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// now is the tick of a scheduler that does not tell its jobs which one it is.
func now() string { return time.Now().UTC().Truncate(period).Format(clock) }

const clock = "15:04:05"
