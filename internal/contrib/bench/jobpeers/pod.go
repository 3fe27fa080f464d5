package main

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

const podEnv = "EPOCHFENCE_JOBPEERS_POD"

// period is the time between two ticks: the night of these trials.
const period = 3 * time.Second

// config is what a pod is told.
type config struct {
	Peer, Form, Name string
	Beside           bool
	Database         string // URL
	Redis            string // address
	RedisDB          int
	Leases           string // URL of the API server
	Temporal         string // address
	ID               string // of the trial

	Freeze string        // where the first pod freezes itself: inWork, beforeCommit, or nowhere
	Long   time.Duration // what the work of a run takes
}

const (
	inWork       = "in its work"
	beforeCommit = "before COMMIT"
)

// pod is this process.
type pod struct {
	config
	db *pgxpool.Pool
}

func (c config) safe() bool { return c.Form != plain }

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
		return peers[p.Peer].beside(ctx, p)
	}
	return peers[p.Peer].run(ctx, p)
}

// schema has the customers, of whom each gets one invoice from a job that runs as it should.
const schema = `create table customer (id int primary key);
	insert into customer select generate_series(1, 20);
	create table invoice (customer int, pod text, tick text, at timestamptz not null default clock_timestamp());
	create table done (job text primary key);
	create table run (id bigint generated always as identity, pod text, tick text, began timestamptz not null default clock_timestamp(), ended timestamptz);
	create table frozen (one boolean primary key default true, pod text, at timestamptz not null default clock_timestamp())`

// job is the nightly job: it finds out whom to bill, works, and writes the invoices in a transaction.
// The id is the same in each attempt of a run.
func (p *pod) job(ctx context.Context, tick, id string) error {
	return p.observed(ctx, tick, func(ctx context.Context) error {
		due, err := p.work(ctx, p.db)
		if err != nil {
			return err
		}
		tx, err := p.db.Begin(ctx)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if err := p.write(ctx, in(tx), due, tick); err != nil {
			return err
		}
		if p.Form == checked {
			if _, err := tx.Exec(ctx, `insert into done (job) values ($1)`, id); err != nil {
				return fmt.Errorf("check: %w", err)
			}
		}
		if err := tx.Commit(ctx); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		return nil
	})
}

// observed writes down when a run began and ended, outside of its transactions.
func (p *pod) observed(ctx context.Context, tick string, do func(context.Context) error) error {
	if !p.safe() {
		ctx = context.WithoutCancel(ctx)
	}
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
	rows, err := q.Query(ctx, `select id from customer where not exists (select from invoice where customer = id) order by id`)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	for half := range 2 {
		select {
		case <-time.After(p.Long / 2):
		case <-ctx.Done():
			return nil, fmt.Errorf("work: %w", context.Cause(ctx))
		}
		if half == 0 {
			if err := p.freeze(ctx, inWork); err != nil {
				return nil, err
			}
		}
	}
	return due, nil
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

func (p *pod) write(ctx context.Context, do statement, due []int32, tick string) error {
	if err := do(ctx, `insert into invoice (customer, pod, tick) select unnest($1::int[]), $2, $3`, due, p.Name, tick); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return p.freeze(ctx, beforeCommit)
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

// event is what a pod tells the stage, in a line.
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
