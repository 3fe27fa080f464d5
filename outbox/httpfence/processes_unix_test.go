//go:build unix

package httpfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// The test binary starts itself again as a receiver.
const (
	driverVar = "HTTPFENCE_TEST_DRIVER"
	sourceVar = "HTTPFENCE_TEST_SOURCE"
)

func TestMain(m *testing.M) {
	if driver := os.Getenv(driverVar); driver != "" {
		if err := receive(driver, os.Getenv(sourceVar)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// receive serves until its standard input ends, as it does with its parent. It
// says on its standard output where.
func receive(driver, source string) error {
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(8)
	d, insert := httpfence.SQLite, `INSERT INTO effects (scope, key, epoch) VALUES (?, ?, ?)`
	if driver == "pgx" {
		d, insert = httpfence.PostgreSQL, `INSERT INTO effects (scope, key, epoch) VALUES ($1, $2, $3)`
	}
	store, err := httpfence.OpenSQL(context.Background(), db, d, httpfence.SQLOptions{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: httpfence.Handler(store, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := httpfence.CallOf(req.Context())
		if _, err := httpfence.Tx(req.Context()).ExecContext(req.Context(), insert, c.Scope, c.Key, int64(c.Epoch)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}), quiet)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// process is a receiver that can be killed.
type process struct {
	*servertest.Self
	url string
}

func (r *rig) process(t *testing.T) *process {
	t.Helper()
	p := &process{Self: servertest.StartSelf(t, driverVar+"="+r.driver, sourceVar+"="+r.url)}
	if p.url = <-p.Lines; !strings.HasPrefix(p.url, "http://") {
		t.Fatalf("a receiver said %q", p.url)
	}
	return p
}

// Two receivers serve one database, and are killed again and again in the middle
// of what they do, while owners and zombies send to both.
func TestReceiversOnOneDatabaseThatAreKilledAgainAndAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var at [2]atomic.Pointer[process]
		for i := range at {
			at[i].Store(r.process(t))
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		post := func(c httpfence.Call) int {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, at[rand.IntN(2)].Load().url, http.NoBody)
			if err != nil {
				return 0
			}
			if err := c.SetHeaders(req.Header); err != nil {
				t.Error(err)
			}
			res, err := client.Do(req)
			if err != nil {
				return 0
			}
			_ = res.Body.Close()
			return res.StatusCode
		}
		const scopes, keys = 6, 40
		var applied, stale, kills atomic.Int64
		var senders, zombies sync.WaitGroup
		for s := range scopes {
			scope := fmt.Sprint("scope-", s)
			var now atomic.Int64
			now.Store(1)
			finished, finish := context.WithCancel(ctx)
			senders.Go(func() {
				defer finish()
				for k := 0; k < keys && ctx.Err() == nil; {
					if applied.Load() > 60+40*kills.Load() { // however long a receiver takes to start, most of the kills have work beside them
						<-time.After(time.Millisecond)
						continue
					}
					switch status := post(call(scope, epoch.Epoch(now.Load()), fmt.Sprint("key-", k))); status {
					case http.StatusCreated:
						k++
						applied.Add(1)
					case http.StatusPreconditionFailed:
						t.Errorf("%s: the owner was refused", scope)
						return
					default: // it is claimed again, or tried again
						now.Add(int64(rand.IntN(2)))
					}
					if rand.IntN(4) == 0 {
						now.Add(1)
					}
				}
			})
			zombies.Go(func() {
				for finished.Err() == nil {
					e := now.Load() - 1 - rand.Int64N(3)
					if e < 1 {
						continue
					}
					if post(call(scope, epoch.Epoch(e), fmt.Sprint("key-", rand.IntN(keys)))) == http.StatusPreconditionFailed {
						stale.Add(1)
					}
				}
			})
		}
		for tick, next := time.NewTicker(5*time.Millisecond), int64(20); applied.Load() < scopes*keys && ctx.Err() == nil && !t.Failed(); <-tick.C {
			if applied.Load() >= next {
				next += 25
				i := kills.Add(1) % 2
				at[i].Load().Kill()
				at[i].Store(r.process(t))
			}
		}
		senders.Wait()
		zombies.Wait()
		if n := len(judge(t, r.log())); n != scopes*keys {
			t.Errorf("%d keys applied, want %d", n, scopes*keys)
		}
		if kills.Load() < 5 || stale.Load() == 0 {
			t.Errorf("%d kills, %d refused as stale", kills.Load(), stale.Load())
		}
		t.Logf("%d kills, %d zombies' requests refused", kills.Load(), stale.Load())
	})
}
