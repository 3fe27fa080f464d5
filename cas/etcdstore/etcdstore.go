// Package etcdstore is a [cas.Store] in etcd, 3.5 or newer.
//
// An item is a key, which any client reads. Another key has the note. With Options.Prefix
// "inventory" and the key "orders/4711", these are
//
//	inventory:orders/4711   the value
//	inventory#orders/4711   a nonce, a dot, and the note
//	inventory@source        a random name of these items
//
// The package hides the transaction that writes both keys and compares them. The version is the
// key's ModRevision and the nonce, because a restored backup repeats revisions. Number is the
// ModRevision. Write and delete items only through the store.
package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Prefix begins the names of all keys. Stores with different prefixes have different items.
	// It must not contain ":", "#" or "@". Defaults to "epochfence".
	Prefix string
}

// Store is safe for concurrent use.
type Store struct {
	client *clientv3.Client
	prefix string
}

// Open returns a store. client stays the caller's.
func Open(client *clientv3.Client, o Options) (*Store, error) {
	if strings.ContainsAny(o.Prefix, ":#@") {
		return nil, fmt.Errorf("etcdstore: Options.Prefix %q contains one of : # @", o.Prefix)
	}
	return &Store{client, cmp.Or(o.Prefix, "epochfence")}, nil
}

func (s *Store) value(key string) string { return s.prefix + ":" + key }
func (s *Store) note(key string) string  { return s.prefix + "#" + key }

// A server takes requests of 1.5 MiB, unless --max-request-bytes sets another limit.
var facts = cas.Facts{Numbers: true, ListsWhole: true, MaxKey: 1024, MaxValue: 1 << 20, MaxNote: 256 << 10}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	key := s.prefix + "@source"
	r, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, rand.Text()), clientv3.OpGet(key)).
		Else(clientv3.OpGet(key), clientv3.OpGet(key)).Commit()
	if err != nil {
		return cas.Facts{}, fmt.Errorf("etcdstore: facts: %w", ended(ctx, err))
	}
	f := facts
	f.Source = "etcd:" + string(r.Responses[1].GetResponseRange().Kvs[0].Value)
	return f, nil
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	items, err := s.get(ctx, key)
	if err != nil {
		return cas.Item{}, failed("get", key, ended(ctx, err))
	}
	return items[0], nil
}

// mostOps is the number of operations that a transaction of etcd may have (--max-txn-ops), unless the
// server is told otherwise.
const mostOps = 128

// GetAll implements [cas.BatchGetter].
func (s *Store) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	var all []cas.Item
	for some := range slices.Chunk(keys, mostOps/2) {
		items, err := s.get(ctx, some...)
		if err != nil {
			return nil, failed("get", strings.Join(some, ", "), ended(ctx, err))
		}
		all = append(all, items...)
	}
	return all, nil
}

// get reads items in one request.
func (s *Store) get(ctx context.Context, keys ...string) (items []cas.Item, err error) {
	var reads []clientv3.Op
	for _, key := range keys {
		if err := facts.Check(key, nil, nil); err != nil {
			return nil, err
		}
		reads = append(reads, clientv3.OpGet(s.value(key)), clientv3.OpGet(s.note(key)))
	}
	r, err := s.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		values, notes := r.Responses[2*i].GetResponseRange().Kvs, r.Responses[2*i+1].GetResponseRange().Kvs
		if len(values) == 0 {
			items = append(items, cas.Item{Key: key})
		} else {
			items = append(items, item(key, values[0], append(notes, nil)[0]))
		}
	}
	return items, nil
}

// item returns the item of a value and the note that was written with it, if any was.
func item(key string, value, note *mvccpb.KeyValue) cas.Item {
	i := cas.Item{Key: key, Live: true, Value: value.Value, Number: value.ModRevision, Version: strconv.FormatInt(value.ModRevision, 10)}
	if note == nil || note.ModRevision != value.ModRevision {
		return i // somebody else's
	}
	nonce, content, _ := bytes.Cut(note.Value, []byte("."))
	i.Version += "." + string(nonce)
	i.Note = content
	return i
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	nonce := rand.Text()
	revision, err := s.write(ctx, seen, value, note,
		clientv3.OpPut(s.value(seen.Key), string(value)), clientv3.OpPut(s.note(seen.Key), nonce+"."+string(note)))
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, ended(ctx, err))
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Number, item.Version = revision, strconv.FormatInt(revision, 10)+"."+nonce
	return item, nil
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	if !seen.Live {
		return failed("delete", seen.Key, errors.Join(facts.Check(seen.Key, nil, nil), cas.ErrConflict))
	}
	_, err := s.write(ctx, seen, nil, nil, clientv3.OpDelete(s.value(seen.Key)), clientv3.OpDelete(s.note(seen.Key)))
	return failed("delete", seen.Key, ended(ctx, err))
}

func (s *Store) write(ctx context.Context, seen cas.Item, value, note []byte, then ...clientv3.Op) (revision int64, err error) {
	if err := facts.Check(seen.Key, value, note); err != nil {
		return 0, err
	}
	as, ok := s.as(seen)
	if !ok {
		return 0, cas.ErrConflict
	}
	r, err := s.client.Txn(ctx).If(as...).Then(then...).Commit()
	if err != nil {
		return 0, err
	}
	if !r.Succeeded {
		return 0, cas.ErrConflict
	}
	return r.Header.Revision, nil
}

// as returns the conditions that an item is as seen. ok is false if no store has returned seen.
func (s *Store) as(seen cas.Item) (compare []clientv3.Cmp, ok bool) {
	key := s.value(seen.Key)
	if seen.Version == "" {
		return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, true
	}
	number, nonce, stamped := strings.Cut(seen.Version, ".")
	revision, err := strconv.ParseInt(number, 10, 64)
	if err != nil || revision <= 0 {
		return nil, false
	}
	compare = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)}
	if stamped {
		compare = append(compare, clientv3.Compare(clientv3.Value(s.note(seen.Key)), "=", nonce+"."+string(seen.Note)))
	}
	return compare, true
}

// page is the number of items that List reads at a time.
const page = 200

// List implements [cas.Store]. It returns the items as they were at one moment.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		from, end := s.value(prefix), clientv3.GetPrefixRangeEnd(s.value(prefix))
		var revision int64
		for more := true; more; {
			r, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, ended(ctx, err)))
				return
			}
			if len(r.Kvs) == 0 {
				return
			}
			revision, more = r.Header.Revision, r.More
			notes, err := s.notes(ctx, s.key(r.Kvs[0]), s.key(r.Kvs[len(r.Kvs)-1]), revision)
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, ended(ctx, err)))
				return
			}
			for _, kv := range r.Kvs {
				if key := s.key(kv); !yield(item(key, kv, notes[s.note(key)]), nil) {
					return
				}
			}
			from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		}
	}
}

func (s *Store) key(kv *mvccpb.KeyValue) string {
	return strings.TrimPrefix(string(kv.Key), s.value(""))
}

// notes returns the notes of the keys from first to last.
func (s *Store) notes(ctx context.Context, first, last string, revision int64) (map[string]*mvccpb.KeyValue, error) {
	r, err := s.client.Get(ctx, s.note(first), clientv3.WithRange(s.note(last)+"\x00"), clientv3.WithRev(revision))
	if err != nil {
		return nil, err
	}
	notes := map[string]*mvccpb.KeyValue{}
	for _, kv := range r.Kvs {
		notes[string(kv.Key)] = kv
	}
	return notes, nil
}

// ended adds the end of ctx to an error that only says so in gRPC's words.
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
	switch {
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		err = fmt.Errorf("%w: %w", cas.ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		err = fmt.Errorf("%w: compact and defragment etcd, then run etcdctl alarm disarm: %w", cas.ErrFull, err)
	}
	return fmt.Errorf("etcdstore: %s %q: %w", what, key, err)
}
