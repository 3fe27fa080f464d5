package consumertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
)

// This file reads, compares and puts back the items of a store, and decides which of them a transaction writes. A row is
// the key, the value and the note of an item, quoted.

// Items returns a store for a cassink, whose items a [Check] compares. Open the sink over it, and give it to Check as
// the database. The table of "stock/chair" is stock, and the columns are the fields of a JSON object, or "value".
//
// Each item is written by itself, so Check also ends transactions that have written a part of their items. It rewinds as
// an operator does, also at its end. It does not compare the sink's own items: fences, dead letters, the outbox.
func Items(store cas.Store) *ItemStore { return &ItemStore{Store: store, named: map[string]bool{}} }

// ItemStore is a store whose items a [Check] compares: see [Items].
type ItemStore struct {
	cas.Store
	o      Options
	named  map[string]bool // the tables and columns that exist
	prefix string          // of the sink's own items, once it has read a fence
}

// writes decides which items of a transaction are written. Its position is not.
type writes struct {
	keep  func(key string) bool // those that are written; if nil, none is, and the sink is told that all are
	begun atomic.Bool           // the handler has returned; what it writes itself is written

	mu       sync.Mutex
	items    map[string]cas.Item // what the sink was told
	complete bool                // all items are written
}

type writesKey struct{}

// Lock locks nothing: most stores have no locks.
func (s *ItemStore) Lock(context.Context) (func(), error) { return func() {}, nil }

// Get implements [cas.Store].
func (s *ItemStore) Get(ctx context.Context, key string) (cas.Item, error) {
	if prefix, _, is := strings.Cut(key, "/fence/"); is && s.prefix == "" { // Check reads the fences first
		s.prefix = prefix
	}
	return s.Store.Get(ctx, key)
}

// Swap implements [cas.Store].
func (s *ItemStore) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	w, _ := ctx.Value(writesKey{}).(*writes)
	own, fence := strings.HasPrefix(seen.Key, s.prefix+"/"), strings.HasPrefix(seen.Key, s.prefix+"/fence/")
	if w == nil || !w.begun.Load() || own && !fence || !own && w.keep != nil && w.keep(seen.Key) {
		return s.Store.Swap(ctx, seen, value, note)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if fence || w.keep != nil {
		w.complete = w.complete || fence
		return cas.Item{}, fmt.Errorf("consumertest: the process ends before it writes %q: %w", seen.Key, cas.ErrFull)
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Version = fmt.Sprint("not written ", len(w.items))
	w.items[seen.Key] = item
	return item, nil
}

// all returns the live items that are not the sink's.
func (s *ItemStore) all(ctx context.Context) (map[string]cas.Item, error) {
	all := map[string]cas.Item{}
	for item, err := range s.List(ctx, "") {
		if strings.HasPrefix(item.Key, s.prefix+"/") {
			continue
		}
		if err == nil {
			item, err = s.Store.Get(ctx, item.Key)
		}
		if all[item.Key] = item; err == nil && len(all) > mostRows {
			err = fmt.Errorf("there are more than %d: %s", mostRows, ownDatabase)
		}
		if err != nil {
			return nil, fmt.Errorf("read the items: %w", err)
		}
	}
	return all, nil
}

func (s *ItemStore) open(ctx context.Context, o Options, mine []epoch.Partition) ([][]string, error) {
	if s.o = o; s.prefix == "" {
		return nil, errors.New("the cassink is not open over what Items has returned")
	}
	for item, err := range s.List(ctx, "") { // also of sinks with other prefixes
		if at := strings.Split(item.Key, "/"); err == nil && len(at) == 5 && at[1] == "fence" && !slices.ContainsFunc(mine, func(p epoch.Partition) bool {
			return item.Key == s.prefix+"/fence/"+cas.Join(p.Group, p.Topic, strconv.Itoa(int(p.Number)))
		}) {
			err = fmt.Errorf("%q is that of no partition of the messages: %s", item.Key, ownDatabase)
		}
		if err != nil {
			return nil, fmt.Errorf("list the fences: %w", err)
		}
	}
	return s.read(ctx, nil)
}

func (s *ItemStore) text(rows [][]string) string { return strings.Join(rows[0], "\n") }

// read returns the items as they are or, if tx is not nil, as the transaction would have left them.
func (s *ItemStore) read(ctx context.Context, tx any) ([][]string, error) {
	items, err := s.all(ctx)
	if w, is := tx.(*writes); is && err == nil {
		maps.Copy(items, w.items)
	}
	rows := []string{}
	for key, item := range items {
		rows = append(rows, fmt.Sprintf("%q %q %q", key, item.Value, item.Note))
	}
	slices.Sort(rows)
	return [][]string{rows}, err
}

func itemOf(row string) cas.Item {
	var key, value, note string
	_, _ = fmt.Sscanf(row, "%q %q %q", &key, &value, &note)
	return cas.NewItem(key, []byte(value), []byte(note))
}

func (s *ItemStore) restore(ctx context.Context, rows [][]string) error {
	now, err := s.all(ctx)
	for _, row := range rows[0] {
		want := itemOf(row)
		is, exists := now[want.Key]
		delete(now, want.Key)
		if !exists && err == nil {
			is, err = s.Store.Get(ctx, want.Key)
		}
		if err == nil && (!exists || string(is.Value) != string(want.Value) || string(is.Note) != string(want.Note)) {
			_, err = s.Store.Swap(ctx, is, want.Value, want.Note)
		}
	}
	for _, item := range now {
		if err == nil {
			err = s.Delete(ctx, item)
		}
	}
	if err != nil {
		return fmt.Errorf("put the items back: %w", err)
	}
	return nil
}

func (s *ItemStore) lines(rows [][]string, _ bool) map[string][]line {
	all := map[string][]line{}
	for _, row := range rows[0] {
		item := itemOf(row)
		state, err := guard.StateOf(item)
		table, _, _ := strings.Cut(item.Key, "/")
		if s.named[table] = true; err == nil && !state.Exists || len(s.o.Tables) > 0 && !slices.Contains(s.o.Tables, table) {
			continue
		}
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(state.Value, &fields) != nil || len(fields) == 0 {
			fields = map[string]json.RawMessage{"value": state.Value}
		}
		l := line{"key=" + item.Key}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if s.named[table+"."+name] = true; !slices.Contains(s.o.Ignore, table+"."+name) {
				text := string(fields[name])
				_ = json.Unmarshal(fields[name], &text) // without the quotes of a JSON text
				l = append(l, name+"="+epochless(text))
			}
		}
		all[table] = append(all[table], l)
	}
	return all
}

// unknown returns an error if the options name what no item had.
func (s *ItemStore) unknown() error {
	for _, n := range slices.Concat(s.o.Tables, s.o.Ignore) {
		if !s.named[n] {
			return fmt.Errorf("the options name %q, which no item has", n)
		}
	}
	return nil
}
