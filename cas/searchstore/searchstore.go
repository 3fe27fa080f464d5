// Package searchstore is a [cas.Store] in an index of OpenSearch 2.
//
// It is for documents that applications search for, and that package guard changes. If the value of
// an item is a JSON object, it is the document, with the field "epochfence" in addition:
//
//	GET inventory/_source/orders=2F4711
//	{"epochfence":{"key":"orders=2F4711","writes":"6ZK4BJ7Q3O.…","note":"…"},"state":"paid"}
//
// Any other value is in epochfence.value, as a string or as {"base64":"…"}. So are objects that
// OpenSearch would refuse or change: see plain in document.go. A document that contradicts the
// mapping is refused, and nothing is written. The _id is the key, escaped by [cas.Escape]; beyond
// 512 bytes, its end is a hash. Write and delete items only through the store.
//
// The package hides that the server repeats writes. A write compares _seq_no and _primary_term.
// When a node fails, OpenSearch may repeat a write by itself and refuse the second one, so each
// document has the nonces of its last 16 writes. If more, or a deletion, have followed, Swap
// returns [cas.ErrConflict] for a write that was carried out, unlike [cas.Store]. Package guard
// handles that.
//
// Number is _seq_no + 1. It, and versions, may repeat after a snapshot was restored, unless it was
// restored over the closed index. The store is not for package lease: each listing refreshes the
// index, and a server that hangs is replaced after half a minute (cluster.fault_detection).
package searchstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/opensearch-project/opensearch-go/v4"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store]. The zero value works. Use the same Options for [Create] and [Open].
type Options struct {
	// Alias is the name under which the store reads and writes the index. It must be an alias:
	// a write to an index that does not exist creates it, without our mapping, unless the write requires
	// an alias. Defaults to "epochfence".
	Alias string
}

func (o Options) alias() string { return cmp.Or(o.Alias, "epochfence") }

// Store is safe for concurrent use.
type Store struct {
	client *opensearch.Client
	alias  string
}

// Open returns a store, after it has looked at the index. client stays the caller's.
//
// Open returns an error if the client repeats requests: a write that is repeated after its answer
// was lost looks as if another process had written. Set [opensearch.Config.DisableRetry]. It returns
// [cas.ErrUnsuitable] if the index does not keep items as they were written.
func Open(ctx context.Context, client *opensearch.Client, o Options) (*Store, error) {
	s := &Store{client, o.alias()}
	if c := client.GetConfig(); c == nil || !c.DisableRetry {
		return nil, errors.New("searchstore: the client repeats requests; set opensearch.Config.DisableRetry to true")
	}
	if _, err := s.source(ctx); err != nil {
		return nil, fmt.Errorf("searchstore: open %q: %w", s.alias, err)
	}
	return s, nil
}

// An index limits documents by http.max_content_length, 100 MB by default, and Amazon's smallest
// servers to 10 MB.
var facts = cas.Facts{Repeats: true, Numbers: true, MaxKey: 1024, MaxValue: 1 << 20, MaxNote: 64 << 10}

// Facts implements [cas.Store]. The source is another one after a snapshot of the index was restored.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	source, err := s.source(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("searchstore: facts: %w", err)
	}
	f := facts
	f.Source = "opensearch:" + source
	return f, nil
}

// maxID is the number of bytes that the name of a document may have.
const maxID = 512

// id returns the name of a key's document. It needs no escaping in a URL.
func id(key string) string {
	escaped := cas.Escape(key)
	if len(escaped) <= maxID {
		return escaped
	}
	sum := sha256.Sum256([]byte(key))
	end := "~" + hex.EncodeToString(sum[:])
	return escaped[:maxID-len(end)] + end
}

func (s *Store) path(key string) string { return url.PathEscape(s.alias) + "/_doc/" + id(key) }

// version is a document's version as the server returns and compares it.
type version struct {
	SeqNo       *int64 `json:"_seq_no"`
	PrimaryTerm int64  `json:"_primary_term"`
}

// of returns an item's version and number, from the last writes of its document.
func (v version) of(writes string) (name string, number int64) {
	return fmt.Sprintf("%d.%d.%s", *v.SeqNo, v.PrimaryTerm, writes), *v.SeqNo + 1
}

// as returns the condition that an item is as seen, and the last writes of its document.
func as(seen cas.Item) (condition url.Values, writes string, err error) {
	if seen.Version == "" {
		return url.Values{"op_type": {"create"}}, "", nil
	}
	parts := strings.SplitN(seen.Version, ".", 3)
	if len(parts) < 3 {
		return nil, "", cas.ErrConflict // no version of this store
	}
	for _, n := range parts[:2] {
		if _, err := strconv.ParseUint(n, 10, 63); err != nil {
			return nil, "", cas.ErrConflict
		}
	}
	return url.Values{"if_seq_no": parts[:1], "if_primary_term": parts[1:2]}, parts[2], nil
}

// document is what Get reads.
type document struct {
	version
	value []byte
	own   stamp
}

// read returns a document from the primary shard, as the last write has left it.
func (s *Store) read(ctx context.Context, key string) (d document, err error) {
	var r struct {
		version
		Source json.RawMessage `json:"_source"`
	}
	if err := do(ctx, s.client, http.MethodGet, request{s.path(key), url.Values{"preference": {"_primary"}}, nil}, &r); err != nil {
		return document{}, err
	}
	if r.SeqNo == nil {
		return document{}, errNoSeqNo
	}
	d.version = r.version
	d.value, d.own, err = split(r.Source)
	if err == nil && d.own.Key != cas.Escape(key) && !d.own.gone() {
		err = errForeign
	}
	return d, err
}

// Get implements [cas.Store]. It reads the last write.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	err := facts.Check(key, nil, nil)
	var d document
	if err == nil {
		d, err = s.read(ctx, key)
	}
	if errors.Is(err, errNone) {
		return cas.Item{Key: key}, nil
	}
	if err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	item := cas.Item{Key: key, Live: !d.own.gone(), Value: d.value, Note: d.own.Note}
	item.Version, item.Number = d.of(d.own.Writes)
	return item, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	err := facts.Check(seen.Key, value, note)
	item := cas.NewItem(seen.Key, value, note)
	if err == nil {
		item.Version, item.Number, err = s.write(ctx, seen, item.Value, stamp{Key: cas.Escape(seen.Key), Note: item.Note})
	}
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	return item, nil
}

// Delete implements [cas.Store]. It first writes a document that marks the item as gone, so that
// it can distinguish its own deletion from another one, and then deletes the document. A document
// that is left is no item.
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	err := facts.Check(seen.Key, nil, nil)
	if err == nil && !seen.Live {
		err = cas.ErrConflict
	}
	var left cas.Item
	if err == nil {
		left.Version, _, err = s.write(ctx, seen, nil, stamp{})
	}
	if err == nil {
		condition, _, _ := as(left)
		_ = do(ctx, s.client, http.MethodDelete, request{s.path(seen.Key), condition, nil}, nil)
	}
	return failed("delete", seen.Key, err)
}

// write replaces an item's document if it is as seen.
func (s *Store) write(ctx context.Context, seen cas.Item, value []byte, own stamp) (name string, number int64, err error) {
	condition, before, err := as(seen)
	if err != nil {
		return "", 0, err
	}
	nonce := newNonce()
	own.Writes = after(before, nonce)
	condition.Set("require_alias", "true")
	body, err := join(value, own)
	if err != nil {
		return "", 0, err
	}
	var written version
	err = do(ctx, s.client, http.MethodPut, request{s.path(seen.Key), condition, body}, &written)
	if errors.Is(err, cas.ErrConflict) {
		written, err = s.landed(ctx, seen.Key, nonce, err)
	}
	if err == nil && written.SeqNo == nil {
		err = errNoSeqNo
	}
	if err != nil {
		return "", 0, err
	}
	name, number = written.of(own.Writes)
	return name, number, nil
}

// landed looks for a refused write among the last writes that its document names.
//
// When the node with the primary shard fails, the node that the client asked sends the write again by
// itself, to the next primary shard (TransportReplicationAction). If the first one was carried out and
// replicated, the second is refused: it conflicts with the first.
func (s *Store) landed(ctx context.Context, key, nonce string, refused error) (version, error) {
	d, err := s.read(ctx, key)
	writes := strings.Split(d.own.Writes, ".")
	switch {
	case errors.Is(err, errNone), errors.Is(err, errForeign):
		return version{}, refused
	case err != nil:
		return version{}, fmt.Errorf("OpenSearch refused the write, and did not say whether it had repeated it: %w", err)
	case writes[0] == nonce:
		return d.version, nil
	case slices.Contains(writes, nonce):
		return version{}, errors.New("OpenSearch repeated the write; the first one was carried out, and others have replaced it")
	}
	return version{}, refused
}

// page is the number of items that List reads at a time.
const page = 500

// List implements [cas.Store]. It refreshes the index first, so that it has the items that were
// written before. The primary shards answer.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		err := s.refresh(ctx)
		for after, more := "", true; more && err == nil; {
			var hits []hit
			hits, err = s.hits(ctx, prefix, after)
			for _, h := range hits {
				item, ok := h.item()
				after = h.Sort[0]
				if ok && !yield(item, nil) {
					return
				}
			}
			more = len(hits) == page
		}
		if err != nil {
			yield(cas.Item{}, failed("list", prefix, err))
		}
	}
}

// shards is the part of an answer about its shards.
type shards struct {
	Shards struct{ Failed int } `json:"_shards"`
}

func (s shards) check() error {
	if n := s.Shards.Failed; n > 0 {
		return fmt.Errorf("%d shards of the index did not answer", n)
	}
	return nil
}

func (s *Store) refresh(ctx context.Context) error {
	var r shards
	if err := do(ctx, s.client, http.MethodPost, request{url.PathEscape(s.alias) + "/_refresh", nil, nil}, &r); err != nil {
		return err
	}
	return r.check()
}

type hit struct {
	version
	ID     string   `json:"_id"`
	Sort   []string // the key
	Fields map[string][]string
}

// item returns false for a copy of an item's document, under another name.
func (h hit) item() (cas.Item, bool) {
	key, err := cas.Unescape(h.Sort[0])
	writes := h.Fields["epochfence.writes"]
	if err != nil || id(key) != h.ID || len(writes) != 1 || h.SeqNo == nil {
		return cas.Item{}, false
	}
	item := cas.Item{Key: key, Live: true}
	item.Version, item.Number = h.of(writes[0])
	return item, true
}

// hits returns a page, in the order of the escaped keys. A key does not change, so that what is
// written meanwhile moves no item to another page.
func (s *Store) hits(ctx context.Context, prefix, after string) ([]hit, error) {
	type object = map[string]any
	query := object{
		"size": page, "track_total_hits": false, "_source": false, "seq_no_primary_term": true,
		"query": object{"prefix": object{"epochfence.key": cas.Escape(prefix)}},
		"sort":  []string{"epochfence.key"}, "docvalue_fields": []string{"epochfence.writes"},
	}
	if prefix == "" {
		query["query"] = object{"exists": object{"field": "epochfence.key"}}
	}
	if after != "" {
		query["search_after"] = []string{after}
	}
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	var r struct {
		shards
		TimedOut bool `json:"timed_out"`
		Hits     struct{ Hits []hit }
	}
	// Without this, shards that fail are left out.
	whole := url.Values{"preference": {"_primary"}, "allow_partial_search_results": {"false"}}
	if err := do(ctx, s.client, http.MethodPost, request{url.PathEscape(s.alias) + "/_search", whole, body}, &r); err != nil {
		return nil, err
	}
	if r.TimedOut {
		return nil, errors.New("the search took too long for the server")
	}
	if slices.ContainsFunc(r.Hits.Hits, func(h hit) bool { return len(h.Sort) != 1 }) {
		return nil, errors.New("the server did not sort")
	}
	return r.Hits.Hits, r.check()
}

// request implements [opensearch.Request].
type request struct {
	path  string
	query url.Values
	body  []byte
}

func (r request) GetRequest(method string) (*http.Request, error) {
	to := "/" + r.path
	if len(r.query) > 0 {
		to += "?" + r.query.Encode()
	}
	if r.body == nil {
		return http.NewRequest(method, to, nil)
	}
	q, err := http.NewRequest(method, to, bytes.NewReader(r.body))
	if err == nil {
		q.Header.Set("Content-Type", "application/json")
	}
	return q, err
}

var (
	errNone    = errors.New("there is no such document")
	errNoSeqNo = errors.New("the server did not say the document's _seq_no")
)

// do sends a request, and reads the answer into to unless it is nil. It returns errNone if the server
// has no such document.
func do(ctx context.Context, client *opensearch.Client, method string, r request, to any) error {
	answer, err := opensearch.Do(ctx, client, method, r, (*opensearch.NoBody)(nil))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.IsError() {
		answer.Body = io.NopCloser(bytes.NewReader(body))
		return refused(answer, body)
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(body, to)
}

// refused returns the meaning of an error that the server has answered with.
func refused(answer *opensearch.Response, body []byte) error {
	var document struct{ Found *bool }
	if answer.StatusCode == http.StatusNotFound && json.Unmarshal(body, &document) == nil && document.Found != nil {
		return errNone
	}
	err := opensearch.ParseError(answer)
	switch kind := kindOf(err); {
	case kind == "version_conflict_engine_exception":
		return fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case kind == "cluster_block_exception" && answer.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%w; make room on the disks of its nodes, or add nodes: %w", cas.ErrFull, err)
	}
	return err
}

// kindOf returns the server's name of an error.
func kindOf(err error) string {
	var e *opensearch.StructError
	if errors.As(err, &e) {
		return e.Err.Type
	}
	return ""
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("searchstore: %s %q: %w", what, key, err)
}
