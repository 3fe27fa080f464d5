// Package redisstore is a [cas.Store] in Redis, 7 or newer, or in Valkey.
//
// An item is a string, which any client reads. A hash beside it has the note and the version. With
// Options.Prefix "inventory" and the key "orders/4711", these are
//
//	{inventory}:orders/4711   the value
//	{inventory}#orders/4711   number, nonce, note
//	{inventory}@index         all keys, sorted
//	{inventory}@number        the last number
//	{inventory}@source        a random name of these items
//
// All are in one hash slot. The package hides the functions that compare and write them at once.
// Write and delete items only through the store. A string that was there before is an item, but
// List does not have it until it is replaced.
//
// Redis acknowledges a write before its replicas, or its disk, have it. A failover or a crash can
// lose the last writes and repeat their numbers. Versions do not repeat.
package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Prefix begins the names of all keys. Stores with different prefixes have different items.
	// It must not contain "{" or "}". Defaults to "epochfence".
	Prefix string
}

var (
	_ cas.BatchGetter  = (*Store)(nil)
	_ cas.BatchSwapper = (*Store)(nil)
)

// Store is safe for concurrent use.
type Store struct {
	client *redis.Client
	prefix string
}

//go:embed version.lua
var version string

//go:embed get.lua
var getLua string

//go:embed swap.lua
var swapLua string

//go:embed delete.lua
var deleteLua string

var (
	getScript    = redis.NewScript(version + getLua)
	swapScript   = redis.NewScript(version + swapLua)
	deleteScript = redis.NewScript(version + deleteLua)
)

// Open returns a store. client stays the caller's. It may be a client of Sentinel, from
// [redis.NewFailoverClient].
//
// Open returns an error if the client repeats commands: a write that is repeated after its answer
// was lost looks as if another process had written. Set [redis.Options.MaxRetries] to -1. It
// returns [cas.ErrUnsuitable] if the server evicts keys that have no time to live.
func Open(ctx context.Context, client *redis.Client, o Options) (*Store, error) {
	s := &Store{client, "{" + cmp.Or(o.Prefix, "epochfence") + "}"}
	if strings.ContainsAny(o.Prefix, "{}") {
		return nil, fmt.Errorf("redisstore: Options.Prefix %q contains a brace", o.Prefix)
	}
	if n := client.Options().MaxRetries; n > 0 {
		return nil, fmt.Errorf("redisstore: the client repeats a command up to %d times; set redis.Options.MaxRetries to -1", n)
	}
	if _, err := s.source(ctx); err != nil {
		return nil, fmt.Errorf("redisstore: open %s: %w", s.prefix, err)
	}
	return s, nil
}

func (s *Store) value(key string) string { return s.prefix + ":" + key }
func (s *Store) meta(key string) string  { return s.prefix + "#" + key }
func (s *Store) own(name string) string  { return s.prefix + "@" + name }

var facts = cas.Facts{Forgets: true, Numbers: true, ListsWhole: true, MaxKey: 1024, MaxValue: 16 << 20, MaxNote: 1 << 20}

// Facts implements [cas.Store]. It returns [cas.ErrUnsuitable] if the server evicts keys that have no
// time to live.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	f := facts
	source, err := s.source(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("redisstore: facts: %w", err)
	}
	f.Source = "redis:" + source
	return f, nil
}

// source returns the random name of the items, and writes it if there is none, after it has looked at
// the server's settings. They may change, and those of a replica that was promoted may differ.
func (s *Store) source(ctx context.Context) (string, error) {
	return cas.Await(ctx, func() (string, error) {
		memory, err := s.client.Info(ctx, "memory").Result()
		if err != nil {
			return "", err
		}
		_, after, _ := strings.Cut(memory, "maxmemory_policy:")
		if policy, _, _ := strings.Cut(after, "\r\n"); strings.HasPrefix(policy, "allkeys-") {
			return "", fmt.Errorf("%w: the server evicts keys when it is full (maxmemory-policy %s); run: CONFIG SET maxmemory-policy noeviction", cas.ErrUnsuitable, policy)
		}
		source, err := s.client.Get(ctx, s.own("source")).Result()
		if !errors.Is(err, redis.Nil) {
			return source, err
		}
		if err := s.client.SetNX(ctx, s.own("source"), rand.Text(), 0).Err(); err != nil {
			return "", err
		}
		return s.client.Get(ctx, s.own("source")).Result()
	})
}

// Now implements [cas.Clock].
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	now, err := cas.Await(ctx, func() (time.Time, error) { return s.client.Time(ctx).Result() })
	if err != nil {
		err = fmt.Errorf("redisstore: read the server's clock: %w", err)
	}
	return now, err
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	items, err := s.get(ctx, key)
	if err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	return items[0].Item, s.foreign(items[0])
}

// GetAll implements [cas.BatchGetter].
func (s *Store) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	var all []cas.Item
	for some := range slices.Chunk(keys, page) {
		items, err := s.get(ctx, some...)
		if err != nil {
			return nil, failed("get", strings.Join(some, ", "), err)
		}
		for _, i := range items {
			if err := s.foreign(i); err != nil {
				return nil, err
			}
			all = append(all, i.Item)
		}
	}
	return all, nil
}

// found is what is at a key. Without kind, it is an item.
type found struct {
	cas.Item
	kind string // of another type than string
}

// foreign returns an error if the key has something of another type.
func (s *Store) foreign(f found) error {
	if f.kind == "" {
		return nil
	}
	return failed("get", f.Key, fmt.Errorf("%w: %q is a %s, and not a string; run UNLINK on it, or choose another Options.Prefix",
		cas.ErrForeign, s.value(f.Key), f.kind))
}

// get reads items in one request.
func (s *Store) get(ctx context.Context, keys ...string) (items []found, err error) {
	names := make([]string, 0, 2*len(keys))
	for _, key := range keys {
		if err := facts.Check(key, nil, nil); err != nil {
			return nil, err
		}
		names = append(names, s.value(key), s.meta(key))
	}
	answers, err := cas.Await(ctx, func() ([]any, error) { return getScript.Run(ctx, s.client, names).Slice() })
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		item := found{Item: cas.Item{Key: key}}
		switch fields, _ := answers[i].([]any); len(fields) {
		case 1:
			item.kind = fields[0].(string)
		case 4:
			item.Live, item.Version = true, fields[0].(string)
			item.Value, item.Note = []byte(fields[1].(string)), []byte(fields[2].(string))
			if item.Number, err = strconv.ParseInt(fields[3].(string), 10, 64); err != nil {
				return nil, err
			}
		}
		items = append(items, item)
	}
	return items, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	r := s.SwapAll(ctx, []cas.Write{{Seen: seen, Value: value, Note: note}})[0]
	return r.Item, r.Err
}

// SwapAll implements [cas.BatchSwapper]. The first call of the pipeline has the script, which the server knows
// then.
func (s *Store) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	results, calls := make([]cas.Written, len(writes)), make(map[int][]any, len(writes))
	number, index := s.own("number"), s.own("index")
	for i, w := range writes {
		item := cas.NewItem(w.Seen.Key, w.Value, w.Note)
		item.Version = rand.Text()
		if results[i] = (cas.Written{Item: item, Err: facts.Check(item.Key, w.Value, w.Note)}); results[i].Err == nil {
			calls[i] = []any{w.Seen.Version, item.Key, item.Value, item.Note, item.Version}
		}
	}
	answers, err := cas.Await(ctx, func() (map[int]*redis.Cmd, error) {
		answers, run, p := make(map[int]*redis.Cmd, len(calls)), swapScript.Eval, s.client.Pipeline()
		if len(calls) == 1 {
			run = func(ctx context.Context, _ redis.Scripter, keys []string, args ...any) *redis.Cmd {
				return swapScript.Run(ctx, s.client, keys, args...)
			}
		}
		for i, args := range calls {
			key := args[1].(string)
			answers[i] = run(ctx, p, []string{s.value(key), s.meta(key), number, index}, args...)
			if len(calls) > 1 {
				run = swapScript.EvalSha
			}
		}
		_, _ = p.Exec(ctx) // each answer has its error
		return answers, nil
	})
	for i, w := range writes {
		r := &results[i]
		if r.Err = cmp.Or(r.Err, err); r.Err == nil {
			r.Item.Number, r.Err = refused(answers[i].Int64())
		}
		r.Item.Version = strconv.FormatInt(r.Item.Number, 10) + "." + r.Item.Version
		if r.Err != nil {
			*r = cas.Written{Err: failed("swap", w.Seen.Key, r.Err)}
		}
	}
	return results
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	if err := facts.Check(seen.Key, nil, nil); err != nil {
		return failed("delete", seen.Key, err)
	}
	_, err := s.write(ctx, deleteScript, []string{s.value(seen.Key), s.meta(seen.Key), s.own("index")}, seen.Version, seen.Key)
	return failed("delete", seen.Key, err)
}

// write runs a script that returns 0 for a conflict.
func (s *Store) write(ctx context.Context, script *redis.Script, keys []string, args ...any) (int64, error) {
	return refused(cas.Await(ctx, func() (int64, error) { return script.Run(ctx, s.client, keys, args...).Int64() }))
}

// refused returns the answer of a script that writes, and an error if it has written nothing.
func refused(n int64, err error) (int64, error) {
	switch {
	case err == nil && n != 0:
		return n, nil
	case err == nil, redis.HasErrorPrefix(err, "WRONGTYPE"): // of another type by now
		return 0, cas.ErrConflict
	case redis.HasErrorPrefix(err, "OOM"):
		return 0, fmt.Errorf("%w: give the server more memory (CONFIG SET maxmemory), or delete what nobody needs: %w", cas.ErrFull, err)
	case redis.HasErrorPrefix(err, "MISCONF"): // its disk
		return 0, fmt.Errorf("%w: make room on the server's disk: %w", cas.ErrFull, err)
	}
	return 0, err
}

// page is the number of items that List and GetAll read at a time.
const page = 200

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		from := "[" + prefix
		for {
			keys, items, err := s.page(ctx, from)
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			for _, item := range items {
				if !strings.HasPrefix(item.Key, prefix) {
					return
				}
				if item.Live && !yield(item.Item, nil) {
					return
				}
			}
			if len(keys) < page {
				return
			}
			from = "(" + keys[page-1]
		}
	}
}

// page returns the keys that follow from, and their items.
func (s *Store) page(ctx context.Context, from string) (keys []string, items []found, err error) {
	keys, err = cas.Await(ctx, func() ([]string, error) {
		return s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.own("index"), ByLex: true, Start: from, Stop: "+", Count: page}).Result()
	})
	if err != nil || len(keys) == 0 {
		return nil, nil, err
	}
	items, err = s.get(ctx, keys...)
	return keys, items, err
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, redis.Nil) {
		err = errors.New("the server returned nothing")
	}
	return fmt.Errorf("redisstore: %s %q: %w", what, key, err)
}
