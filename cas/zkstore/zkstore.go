// Package zkstore is a [cas.Store] in Apache ZooKeeper, 3.6 or newer.
//
// An item is a node, whose data is the value, with one child. The child's name is random for each
// write, and its data is the note. With Options.Root "/inventory" and the key "orders", these are
//
//	/inventory/orders                              the value
//	/inventory/orders/6ZK4BJ7Q3OX5HTEDCW2LMN6PRA   the note
//	/inventory/=source                             a random name of these items
//
// The package hides the comparison: a write replaces the child in the same transaction, and fails
// if it is not there. The version that ZooKeeper counts for a node begins at 0 again after a
// deletion. Number is the transaction's zxid.
//
// A server that was emptied or restored refuses clients that have seen a later transaction, until
// they make a new connection.
//
// The servers limit requests to 1 MB (jute.maxbuffer) and do not limit answers. List reads all
// names in one answer, whatever the prefix.
package zkstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Root is the path of the node above the items. Open creates it if it does not exist. Stores
	// with different roots have different items. Defaults to "/epochfence".
	Root string

	// ACL is the access control list of all nodes that the store creates. Defaults to all
	// permissions for everybody.
	ACL []zk.ACL
}

// Store is safe for concurrent use.
type Store struct {
	conn *zk.Conn
	root string
	acl  []zk.ACL
}

const sourceName = "=source" // the name of no key

// Open returns a store. conn stays the caller's.
func Open(ctx context.Context, conn *zk.Conn, o Options) (*Store, error) {
	s := &Store{conn, cmp.Or(o.Root, "/epochfence"), o.ACL}
	if s.acl == nil {
		s.acl = zk.WorldACL(zk.PermAll)
	}
	if !strings.HasPrefix(s.root, "/") || strings.HasSuffix(s.root, "/") {
		return nil, fmt.Errorf("zkstore: Options.Root %q is not the path of a node, such as /epochfence", s.root)
	}
	if _, err := cas.Await(ctx, func() (string, error) { return "", s.makeRoot() }); err != nil {
		return nil, fmt.Errorf("zkstore: open %s: %w", s.root, err)
	}
	return s, nil
}

func (s *Store) makeRoot() error {
	path := ""
	for _, name := range strings.Split(s.root, "/")[1:] {
		path += "/" + name
		if _, err := s.conn.Create(path, nil, 0, s.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

func (s *Store) node(key string) string { return s.root + "/" + cas.Escape(key) }

var facts = cas.Facts{Numbers: true, MaxKey: 1024, MaxValue: 512 << 10, MaxNote: 128 << 10}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	source, err := cas.Await(ctx, func() ([]byte, error) {
		path := s.root + "/" + sourceName
		if _, err := s.conn.Create(path, []byte(rand.Text()), 0, s.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return nil, err
		}
		data, _, err := s.conn.Get(path)
		return data, err
	})
	if err != nil {
		return cas.Facts{}, fmt.Errorf("zkstore: facts: %w", err)
	}
	f := facts
	f.Source = "zookeeper:" + string(source)
	return f, nil
}

// Get implements [cas.Store]. Any server may answer.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	item, err := cas.Await(ctx, func() (cas.Item, error) { return s.get(ctx, key) })
	return item, failed("get", key, err)
}

// get reads until what it has read is of one write: a node and its child were written by one
// transaction.
func (s *Store) get(ctx context.Context, key string) (cas.Item, error) {
	for {
		node := s.node(key)
		version, err := s.version(node)
		if errors.Is(err, zk.ErrNoNode) {
			return cas.Item{Key: key}, nil
		}
		if err != nil {
			return cas.Item{}, err
		}
		value, written, err := s.conn.Get(node)
		if err == nil {
			var note []byte
			var child *zk.Stat
			note, child, err = s.conn.Get(node + "/" + version)
			if err == nil && child.Czxid == written.Mzxid {
				return cas.Item{Key: key, Live: true, Value: value, Note: note, Version: version, Number: written.Mzxid}, nil
			}
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return cas.Item{}, err
		}
		if err := ctx.Err(); err != nil {
			return cas.Item{}, err
		}
	}
}

// version returns the name of a node's child.
func (s *Store) version(node string) (string, error) {
	children, _, err := s.conn.Children(node)
	if err == nil && len(children) != 1 {
		return "", fmt.Errorf("%w: the node %s has %d children, and not one; delete it (deleteall), or choose another Options.Root",
			cas.ErrForeign, node, len(children))
	}
	return strings.Join(children, ""), err
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := facts.Check(seen.Key, value, note); err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	item, node := cas.NewItem(seen.Key, value, note), s.node(seen.Key)
	item.Version = rand.Text()
	var first any = &zk.CreateRequest{Path: node, Acl: s.acl}
	if seen.Version != "" {
		first = &zk.DeleteRequest{Path: node + "/" + seen.Version, Version: -1}
	}
	answers, err := s.write(ctx, seen, first,
		&zk.SetDataRequest{Path: node, Data: item.Value, Version: -1},
		&zk.CreateRequest{Path: node + "/" + item.Version, Data: item.Note, Acl: s.acl})
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	item.Number = answers[1].Stat.Mzxid
	return item, nil
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	err := facts.Check(seen.Key, nil, nil)
	switch node := s.node(seen.Key); {
	case err == nil && seen.Version == "":
		err = cas.ErrConflict
	case err == nil:
		_, err = s.write(ctx, seen, &zk.DeleteRequest{Path: node + "/" + seen.Version, Version: -1}, &zk.DeleteRequest{Path: node, Version: -1})
	}
	return failed("delete", seen.Key, err)
}

// write carries out all requests, or none.
func (s *Store) write(ctx context.Context, seen cas.Item, requests ...any) ([]zk.MultiResponse, error) {
	if strings.Contains(seen.Version, "/") {
		return nil, cas.ErrConflict // no version of this store
	}
	answers, err := cas.Await(ctx, func() ([]zk.MultiResponse, error) { return s.conn.Multi(requests...) })
	switch {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists):
		return nil, fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case err != nil && err.Error() == quotaExceeded:
		return nil, fmt.Errorf("%w: raise the quota (setquota) of %s, or delete what nobody needs: %w", cas.ErrFull, s.root, err)
	}
	return answers, err
}

// quotaExceeded is how the client shows the server's code QUOTAEXCEEDED, which it does not know.
const quotaExceeded = "unknown error: -125"

// atOnce is the number of items whose versions List asks for at a time.
const atOnce = 16

// List implements [cas.Store]. The server that answers first catches up with the leader.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		names, err := cas.Await(ctx, func() ([]string, error) {
			if _, err := s.conn.Sync(s.root); err != nil {
				return nil, err
			}
			names, _, err := s.conn.Children(s.root)
			return names, err
		})
		if err != nil {
			yield(cas.Item{}, failed("list", prefix, err))
			return
		}
		var keys []string
		for _, name := range names {
			if key, err := cas.Unescape(name); err == nil && strings.HasPrefix(key, prefix) && cas.Escape(key) == name {
				keys = append(keys, key)
			}
		}
		for some := range slices.Chunk(keys, atOnce) {
			items, err := cas.Await(ctx, func() ([]cas.Item, error) { return s.listed(some) })
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			for _, item := range items {
				if item.Live && !yield(item, nil) {
					return
				}
			}
		}
	}
}

// listed returns keys and versions of items. Those that are gone meanwhile are not Live.
func (s *Store) listed(keys []string) ([]cas.Item, error) {
	items, errs := make([]cas.Item, len(keys)), make([]error, len(keys))
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() {
			version, err := s.version(s.node(key))
			if err == nil {
				items[i] = cas.Item{Key: key, Live: true, Version: version}
			} else if !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, cas.ErrForeign) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return items, errors.Join(errs...)
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("zkstore: %s %q: %w", what, key, err)
}
