// Package consulstore is a [cas.Store] in the key/value store of HashiCorp Consul, 1.8 or newer.
//
// An item is a key, which any client reads. Beside it is a key whose name is random for each write,
// and which has the note. With Options.Prefix "inventory" and the key "orders/4711", these are
//
//	inventory~/orders/4711~                              the value
//	inventory~/orders/4711~/6ZK4BJ7Q3OX5HTEDCW2LMN6PRA   the note
//	inventory~source                                     a random name of these items
//
// Other bytes than letters, digits, "-", "_" and "/" are escaped as by [cas.Escape]. The token
// needs key_prefix "inventory~" { policy = "write" }. Without it an item seems absent, and a write
// fails.
//
// The package hides the comparison: a transaction checks the ModifyIndex of both keys and writes
// them anew, because Consul keeps the index when the same value is written again, and a restored
// cluster repeats it. Number is the ModifyIndex. A leader that was replaced may return older items.
//
// A server closes connections of a client beyond 200 (http_max_conns_per_client). Package cassink
// sends up to 32 requests at a time: set Config.Transport.MaxConnsPerHost to 100, and requests wait
// instead of failing. An HttpClient of your own must not repeat requests.
//
// Consul has no pages, so List reads all items with the prefix at once.
package consulstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/consul/api"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Prefix begins the names of all keys, and may contain slashes. Stores with different prefixes
	// have different items. It must not contain "~" or begin with "/". Defaults to "epochfence".
	Prefix string
}

// Store is safe for concurrent use.
type Store struct {
	client *api.Client
	prefix string
}

// end ends the name of each value, so that it begins no other value's name: no escaped key has it.
const end = "~"

// Open returns a store. client stays the caller's. The items are in the client's datacenter.
func Open(client *api.Client, o Options) (*Store, error) {
	if strings.Contains(o.Prefix, end) || strings.HasPrefix(o.Prefix, "/") || !utf8.ValidString(o.Prefix) {
		return nil, fmt.Errorf("consulstore: Options.Prefix %q contains ~, begins with / or is not UTF-8", o.Prefix)
	}
	return &Store{client, cmp.Or(o.Prefix, "epochfence") + end}, nil
}

// begins returns what the names of keys that begin with prefix begin with.
func (s *Store) begins(prefix string) string {
	return s.prefix + "/" + strings.ReplaceAll(cas.Escape(prefix), "=2F", "/")
}

func (s *Store) name(key string) string { return s.begins(key) + end }

// A server takes transactions of 512 KiB, unless txn_max_req_len sets another limit. In them, values
// are in base64, which makes them larger by a third.
var facts = cas.Facts{Numbers: true, ListsWhole: true, MaxKey: 1024, MaxValue: 256 << 10, MaxNote: 64 << 10}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	source, err := s.source(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("consulstore: facts: %w", ended(ctx, err))
	}
	f := facts
	f.Source = "consul:" + source
	return f, nil
}

// source returns the random name of the items, and writes it if there is none.
func (s *Store) source(ctx context.Context) (string, error) {
	name := s.prefix + "source"
	for {
		found, err := s.tree(ctx, name)
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return string(found[0].Value), nil
		}
		source := rand.Text()
		_, err = s.write(ctx, []*api.KVTxnOp{absent(name)}, &api.KVTxnOp{Verb: api.KVSet, Key: name, Value: []byte(source)})
		if !errors.Is(err, cas.ErrConflict) {
			return source, err
		}
	}
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	found, err := s.tree(ctx, s.name(key))
	if err != nil {
		return cas.Item{}, failed("get", key, ended(ctx, err))
	}
	for item := range s.items(found) {
		return item, nil
	}
	return cas.Item{Key: key}, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	name, nonce := s.name(seen.Key), rand.Text()
	index, err := s.replace(ctx, seen, value, note,
		&api.KVTxnOp{Verb: api.KVSet, Key: name, Value: value},
		&api.KVTxnOp{Verb: api.KVSet, Key: name + "/" + nonce, Value: note})
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, ended(ctx, err))
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Number, item.Version = int64(index), version(index, nonce)
	return item, nil
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	if !seen.Live {
		return failed("delete", seen.Key, errors.Join(facts.Check(seen.Key, nil, nil), cas.ErrConflict))
	}
	_, err := s.replace(ctx, seen, nil, nil)
	return failed("delete", seen.Key, ended(ctx, err))
}

// replace deletes the item and carries out then, if the item is as seen.
func (s *Store) replace(ctx context.Context, seen cas.Item, value, note []byte, then ...*api.KVTxnOp) (index uint64, err error) {
	if err := facts.Check(seen.Key, value, note); err != nil {
		return 0, err
	}
	as, ok := s.as(seen)
	if !ok {
		return 0, cas.ErrConflict
	}
	// Consul remembers deleted names for a while. That of the value is one for all writes of the item.
	deleted := &api.KVTxnOp{Verb: api.KVDeleteTree, Key: s.name(seen.Key)}
	return s.write(ctx, as, append([]*api.KVTxnOp{deleted}, then...)...)
}

func version(index uint64, nonce string) string { return strconv.FormatUint(index, 10) + "." + nonce }

// as returns the conditions that an item is as seen. ok is false if no store has returned seen.
func (s *Store) as(seen cas.Item) (conditions []*api.KVTxnOp, ok bool) {
	name := s.name(seen.Key)
	if seen.Version == "" {
		return []*api.KVTxnOp{absent(name)}, true
	}
	number, nonce, stamped := strings.Cut(seen.Version, ".")
	index, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return nil, false
	}
	conditions = []*api.KVTxnOp{{Verb: api.KVCheckIndex, Key: name, Index: index}}
	if stamped {
		conditions = append(conditions, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: name + "/" + nonce, Index: index})
	}
	return conditions, true
}

func absent(name string) *api.KVTxnOp { return &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: name} }

// List implements [cas.Store]. It returns the items as they were at one moment.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		found, err := s.tree(ctx, s.begins(prefix))
		if err != nil {
			yield(cas.Item{}, failed("list", prefix, ended(ctx, err)))
			return
		}
		for item := range s.items(found) {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// items returns the items among pairs, which are sorted: a note follows its value.
func (s *Store) items(pairs []*api.KVPair) iter.Seq[cas.Item] {
	return func(yield func(cas.Item) bool) {
		for i, pair := range pairs {
			key, ok := s.key(pair.Key)
			if !ok {
				continue // a note, or somebody else's
			}
			item := cas.Item{Key: key, Live: true, Value: pair.Value, Number: int64(pair.ModifyIndex), Version: strconv.FormatUint(pair.ModifyIndex, 10)}
			for _, next := range pairs[i+1:] {
				nonce, ok := strings.CutPrefix(next.Key, pair.Key+"/")
				if !ok {
					break
				}
				if next.ModifyIndex == pair.ModifyIndex { // otherwise, the value is somebody else's
					item.Note, item.Version = next.Value, version(next.ModifyIndex, nonce)
				}
			}
			if !yield(item) {
				return
			}
		}
	}
}

// key returns the key whose value has the name.
func (s *Store) key(name string) (key string, ok bool) {
	escaped, ok := strings.CutSuffix(strings.TrimPrefix(name, s.begins("")), end)
	key, err := cas.Unescape(escaped)
	return key, ok && err == nil && key != "" && s.name(key) == name
}

// tree returns what has a name that begins with prefix, at one moment.
func (s *Store) tree(ctx context.Context, prefix string) ([]*api.KVPair, error) {
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: prefix}}}
	// A leader that was elected or started a moment ago may lack what its log has, unless it must be
	// consistent.
	ok, r, _, err := s.client.Txn().Txn(ops, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err == nil && !ok {
		err = refusal(r.Errors, 0)
	}
	if err != nil {
		return nil, err
	}
	pairs := make([]*api.KVPair, len(r.Results))
	for i, result := range r.Results {
		pairs[i] = result.KV
	}
	return pairs, nil
}

// write carries out then if the conditions hold, and otherwise returns [cas.ErrConflict]. index is
// the ModifyIndex of what then wrote last.
func (s *Store) write(ctx context.Context, conditions []*api.KVTxnOp, then ...*api.KVTxnOp) (index uint64, err error) {
	var ops api.TxnOps
	for _, op := range append(conditions, then...) {
		ops = append(ops, &api.TxnOp{KV: op})
	}
	ok, r, _, err := s.client.Txn().Txn(ops, new(api.QueryOptions).WithContext(ctx))
	switch {
	case err == nil && !ok:
		err = refusal(r.Errors, len(conditions))
	case isFull(err):
		err = fmt.Errorf("%w: make room on the leader's disk, or raise its limits of requests: %w", cas.ErrFull, err)
	}
	if err != nil {
		return 0, err
	}
	if n := len(r.Results); n > 0 {
		index = r.Results[n-1].KV.ModifyIndex
	}
	return index, nil
}

// refusal returns what has rolled a transaction back: the first operations are conditions. Where the
// token may not write, other operations fail as well.
func refusal(all api.TxnErrors, conditions int) error {
	err := errors.New("the server rolled the transaction back and did not say why")
	for _, e := range all {
		if e.OpIndex >= conditions {
			return errors.New(e.What)
		}
		err = fmt.Errorf("%w: %s", cas.ErrConflict, e.What)
	}
	return err
}

// isFull reports whether the leader took nothing: a leader whose disk does not take an entry of the log
// sends it to no other server (hashicorp/raft, dispatchLogs), and one that is asked too often answers
// before it does anything. The client returns the text of an answer alone.
func isFull(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "no space left on device") || strings.Contains(err.Error(), "rate limit"))
}

// ended adds the end of ctx to an error that does not match it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("consulstore: %s %q: %w", what, key, err)
}
