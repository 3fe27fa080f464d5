package castest

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/rpc"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// server offers a store by net/rpc.
type server struct{ cas.Store }

// Request and Answer are the messages of one call.
type (
	Request struct {
		Op          string
		Item        cas.Item
		Value, Note []byte
	}
	Answer struct {
		Items    []cas.Item
		Facts    cas.Facts
		Err      string
		Conflict bool
	}
)

// Do serves a request.
func (s *server) Do(q Request, a *Answer) error {
	ctx := context.Background()
	var item cas.Item
	var err error
	switch q.Op {
	case "get":
		item, err = s.Get(ctx, q.Item.Key)
	case "swap":
		item, err = s.Swap(ctx, q.Item, q.Value, q.Note)
	case "delete":
		err = s.Delete(ctx, q.Item)
	case "facts":
		a.Facts, err = s.Facts(ctx)
	case "list":
		for each, err := range s.List(ctx, q.Item.Key) {
			if err != nil {
				return err
			}
			a.Items = append(a.Items, each)
		}
		return nil
	}
	a.Items = []cas.Item{item}
	if err != nil {
		a.Err, a.Conflict = err.Error(), errors.Is(err, cas.ErrConflict)
	}
	return nil
}

// serve offers s until t ends.
func serve(t testing.TB, s cas.Store) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := rpc.NewServer()
	if err := r.RegisterName("Store", &server{s}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.ServeConn(c)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// remote is a driver for the server of serve. Each field adds a defect.
type remote struct {
	address  string
	retries  bool // sends a request again after its answer was lost
	deaf     bool // ignores the context while it waits
	hopeful  bool // takes a lost answer for a success
	resigned bool // takes a lost answer for a refusal
	sticky   bool // keeps a broken connection
	content  bool // takes a lost answer for the end of a list
	anew     bool // a watch that was cut off goes on with what comes

	mu     sync.Mutex
	client *rpc.Client
}

func (r *remote) connection() (*rpc.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		c, err := rpc.Dial("tcp", r.address)
		if err != nil {
			return nil, err
		}
		r.client = c
	}
	return r.client, nil
}

func (r *remote) lost(c *rpc.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == c && !r.sticky {
		_ = c.Close()
		r.client = nil
	}
}

func (r *remote) do(ctx context.Context, q Request) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	c, err := r.connection()
	if err != nil {
		return Answer{}, err
	}
	a := new(Answer) // the client may still write it once ctx has ended
	call := c.Go("Store.Do", q, a, make(chan *rpc.Call, 1))
	if r.deaf {
		<-call.Done
		return *a, call.Error
	}
	select {
	case <-call.Done:
		if call.Error != nil {
			r.lost(c)
		}
		return *a, call.Error
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

func (r *remote) call(ctx context.Context, q Request) (Answer, error) {
	a, err := r.do(ctx, q)
	switch lost := err != nil && ctx.Err() == nil; {
	case lost && r.retries:
		a, err = r.do(ctx, q)
	case lost && r.hopeful:
		q.Item.Value, q.Item.Note = q.Value, q.Note
		return Answer{Items: []cas.Item{q.Item}}, nil
	case lost && r.resigned:
		return a, cas.ErrConflict
	}
	if err != nil {
		return a, errors.Join(errors.New(q.Op+` "`+q.Item.Key+`"`), err)
	}
	if a.Err == "" {
		return a, nil
	}
	for _, known := range []error{cas.ErrConflict, cas.ErrKey, cas.ErrTooLarge} {
		if strings.Contains(a.Err, known.Error()) {
			return a, errors.Join(errors.New(a.Err), known)
		}
	}
	return a, errors.New(a.Err)
}

func (r *remote) Get(ctx context.Context, key string) (cas.Item, error) {
	a, err := r.call(ctx, Request{Op: "get", Item: cas.Item{Key: key}})
	return one(a, err)
}

func (r *remote) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	a, err := r.call(ctx, Request{"swap", seen, value, note})
	return one(a, err)
}

func (r *remote) Delete(ctx context.Context, seen cas.Item) error {
	_, err := r.call(ctx, Request{Op: "delete", Item: seen})
	return err
}

func (r *remote) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		a, err := r.call(ctx, Request{Op: "list", Item: cas.Item{Key: prefix}})
		if err != nil && r.content && ctx.Err() == nil {
			return
		}
		if err != nil {
			yield(cas.Item{}, err)
			return
		}
		for _, item := range a.Items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

var _ cas.Watcher = (*remote)(nil)

// Watch lists again and again, and asks for what is missing.
func (r *remote) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		begins, known := true, map[string]string{}
		for cut := false; ; {
			changes, err := r.changes(ctx, prefix, known)
			if ctx.Err() != nil || err != nil && begins {
				yield(cas.Item{}, errors.Join(err, ctx.Err()))
				return
			}
			for _, item := range changes {
				known[item.Key] = item.Version
				if (!cut || !r.anew) && !yield(item, nil) {
					return
				}
			}
			if begins && !yield(cas.Item{}, nil) {
				return
			}
			begins, cut = false, err != nil
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// changes returns the items whose versions are not the known ones.
func (r *remote) changes(ctx context.Context, prefix string, known map[string]string) (changes []cas.Item, err error) {
	there := map[string]bool{}
	for item, err := range r.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		there[item.Key] = true
		if item.Note = nil; known[item.Key] != item.Version {
			changes = append(changes, item)
		}
	}
	for key, version := range known {
		if there[key] {
			continue
		}
		item, err := r.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if !item.Live && item.Version != version {
			changes = append(changes, item)
		}
	}
	return changes, nil
}

func (r *remote) Facts(ctx context.Context) (cas.Facts, error) {
	a, err := r.call(ctx, Request{Op: "facts"})
	return a.Facts, err
}

func one(a Answer, err error) (cas.Item, error) {
	if err != nil {
		return cas.Item{}, err
	}
	return a.Items[0], nil
}
