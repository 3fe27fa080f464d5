package searchstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opensearch-project/opensearch-go/v4"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/searchstore"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// libsEnv is the directory of OpenSearch's jars. `make stores` fetches them.
const libsEnv = "EPOCHFENCE_OPENSEARCH_LIBS"

// server is a node of OpenSearch, which takes 10 s to start: the tests share it.
type server struct {
	*servertest.Server
	aliases atomic.Int32
}

func start(t testing.TB) *server {
	t.Helper()
	java := servertest.Jars(t, libsEnv)
	program, err := filepath.Abs("testdata/Server.java")
	if err != nil {
		t.Fatal(err)
	}
	transport, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Server: servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return java(program, "path.home="+s.Dir, "path.repo="+filepath.Join(s.Dir, "repo"), "network.host=127.0.0.1",
			"http.port="+s.Port(), fmt.Sprint("transport.port=", transport[0]), "discovery.type=single-node",
			"cluster.routing.allocation.disk.threshold_enabled=false")
	})}
	servertest.Await(t, "OpenSearch has a cluster manager", func() bool {
		r, err := http.Get("http://" + s.Address + "/_cluster/health?wait_for_status=yellow&timeout=1s")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	s.ask(t, "PUT", "/_snapshot/repo", `{"type":"fs","settings":{"location":"items"}}`, nil)
	return s
}

// ask sends a request as other programs do, and reads the answer into to unless it is nil.
func (s *server) ask(t testing.TB, method, path, body string, to any) {
	t.Helper()
	q, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://"+s.Address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	said, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode > 299 {
		err = errors.New(r.Status)
	}
	if err == nil && to != nil {
		err = json.Unmarshal(said, to)
	}
	if err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, said)
	}
}

func client(t testing.TB, address string) *opensearch.Client {
	t.Helper()
	c, err := opensearch.NewClient(opensearch.Config{Addresses: []string{"http://" + address}, DisableRetry: true, Transport: &http.Transport{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(t testing.TB, c *opensearch.Client, alias string) cas.Store {
	t.Helper()
	s, err := searchstore.Open(t.Context(), c, searchstore.Options{Alias: alias})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alias returns the name of an index of the caller's own.
func (s *server) alias(t testing.TB) string {
	t.Helper()
	alias := fmt.Sprint("items-", s.aliases.Add(1))
	s.create(t, alias)
	t.Cleanup(func() { s.ask(t, "DELETE", "/"+alias+"-000001", "", nil) })
	return alias
}

func (s *server) create(t testing.TB, alias string) {
	t.Helper()
	if err := searchstore.Create(t.Context(), client(t, s.Address), searchstore.Options{Alias: alias}); err != nil {
		t.Fatal(err)
	}
}

func (s *server) rig(t testing.TB) castest.Rig {
	alias := s.alias(t)
	return castest.Rig{
		Served: true,
		Open: func(t testing.TB, via func(string) string) cas.Store {
			return open(t, client(t, via(s.Address)), alias)
		},
		Empty: func(t testing.TB) {
			s.ask(t, "DELETE", "/"+alias+"-000001", "", nil)
			s.create(t, alias)
		},
		Native: func(t testing.TB, key string) []byte { return s.native(t, alias, strings.ReplaceAll(key, "/", "=2F")) },
	}
}

// native returns the value as a client of OpenSearch's own finds it.
func (s *server) native(t testing.TB, alias, id string) []byte {
	t.Helper()
	var document json.RawMessage
	s.ask(t, "GET", "/"+alias+"/_source/"+id+"?_source_excludes=epochfence", "", &document)
	if !bytes.Equal(document, []byte("{}")) {
		return document
	}
	var own struct {
		Epochfence struct{ Value json.RawMessage }
	}
	s.ask(t, "GET", "/"+alias+"/_source/"+id, "", &own)
	var text string
	if json.Unmarshal(own.Epochfence.Value, &text) == nil {
		return []byte(text)
	}
	var encoded struct{ Base64 []byte }
	if err := json.Unmarshal(own.Epochfence.Value, &encoded); err != nil {
		t.Fatal(err)
	}
	return encoded.Base64
}

func TestRealStore(t *testing.T) {
	s := start(t)
	t.Run("suite", func(t *testing.T) { castest.Run(t, s.rig) })
	t.Run("items", func(t *testing.T) { guardtest.Run(t, s.rig) })
	for what, play := range map[string]func(t *testing.T, s *server){
		"an object is the document, and any value comes back":      values,
		"a document of another program is no item":                 strangers,
		"an index that does not fit is refused with the remedy":    misfits,
		"an index that is gone is not created by a write":          gone,
		"a version of a deletion that was forgotten is refused":    forgotten,
		"a write that was repeated on its way is no conflict":      repeated,
		"what a deletion has left is no item":                      left,
		"a full disk is said to be full":                           full,
		"a snapshot over the closed index repeats no version":      restoredOver,
		"a snapshot in place of the index may, and is another one": restoredInstead,
	} {
		t.Run(what, func(t *testing.T) { play(t, s) })
	}
}

func values(t *testing.T, s *server) {
	alias := s.alias(t)
	store := open(t, client(t, s.Address), alias)
	for n, value := range append(searchstore.PlainValues, searchstore.OtherValues...) {
		key := fmt.Sprint("orders-", n)
		if _, err := store.Swap(t.Context(), cas.Item{Key: key}, []byte(value), []byte(value)); err != nil {
			t.Errorf("%.60q: %v", value, err)
			continue
		}
		item, err := store.Get(t.Context(), key)
		if err != nil || string(item.Value) != value || string(item.Note) != value {
			t.Errorf("%.60q came back as %+v, %v", value, item, err)
		}
		if n >= len(searchstore.PlainValues) {
			continue
		}
		var document map[string]json.RawMessage
		s.ask(t, "GET", "/"+alias+"/_source/"+key, "", &document)
		delete(document, "epochfence")
		var want map[string]json.RawMessage
		if err := json.Unmarshal([]byte(value), &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(document, want) {
			t.Errorf("the document of %.60q is %s", value, document)
		}
	}
}

func strangers(t *testing.T, s *server) {
	alias := s.alias(t)
	store := open(t, client(t, s.Address), alias)
	item, err := store.Swap(t.Context(), cas.Item{Key: "payments"}, []byte(`{"a":1}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var copied json.RawMessage
	s.ask(t, "GET", "/"+alias+"/_source/payments", "", &copied)
	for id, document := range map[string]string{"orders": `{"state":"paid"}`, "copy": string(copied)} {
		s.ask(t, "PUT", "/"+alias+"/_doc/"+id, document, nil)
		if item, err := store.Get(t.Context(), id); !errors.Is(err, cas.ErrForeign) {
			t.Errorf("%+v, %v", item, err)
		}
		if _, err := store.Swap(t.Context(), cas.Item{Key: id}, nil, nil); !errors.Is(err, cas.ErrConflict) {
			t.Errorf("overwritten as if it were absent: %v", err)
		}
	}
	for listed, err := range store.List(t.Context(), "") {
		if err != nil || listed.Key != "payments" || listed.Version != item.Version {
			t.Errorf("listed: %+v, %v", listed, err)
		}
	}
}

func misfits(t *testing.T, s *server) {
	const mapping = `"mappings":{"properties":{"epochfence":{"dynamic":"false","properties":{"key":{"type":"keyword"},"writes":{"type":"keyword","index":false}}}}}`
	const aliased = `"aliases":{"misfit":{}},` + mapping
	for body, remedy := range map[string]string{
		`{` + mapping + `}`:         `"misfit-1" is no alias`,
		`{"aliases":{"misfit":{}}}`: `PUT misfit/_mapping {"properties":{"epochfence"`,
		`{"aliases":{"misfit":{"filter":{"term":{"a":1}}}},` + mapping + `}`:                                 "the alias has a filter",
		`{"aliases":{"misfit":{"routing":"1"}},` + mapping + `}`:                                             "the alias has a filter or a routing",
		`{` + strings.Replace(aliased, `"mappings":{`, `"mappings":{"_source":{"excludes":["a"]},`, 1) + `}`: "_source",
		`{"settings":{"index.translog.durability":"async"},` + aliased + `}`:                                 `"index.translog.durability":"request"`,
		`{"settings":{"index.default_pipeline":"p"},` + aliased + `}`:                                        `"index.default_pipeline":"_none"`,
		`{"settings":{"index.final_pipeline":"p"},` + aliased + `}`:                                          `"index.final_pipeline":"_none"`,
	} {
		s.ask(t, "PUT", "/misfit-1", body, nil)
		name := "misfit"
		if !strings.Contains(body, "aliases") {
			name = "misfit-1"
		}
		_, err := searchstore.Open(t.Context(), client(t, s.Address), searchstore.Options{Alias: name})
		if !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%s: err = %v, want %s", body, err, remedy)
		}
		s.ask(t, "DELETE", "/misfit-1", "", nil)
	}
	s.ask(t, "PUT", "/misfit-1", `{`+aliased+`}`, nil)
	store := open(t, client(t, s.Address), "misfit")
	s.ask(t, "PUT", "/misfit/_settings", `{"index.translog.durability":"async"}`, nil)
	if _, err := store.Facts(t.Context()); !errors.Is(err, cas.ErrUnsuitable) {
		t.Errorf("facts: err = %v", err)
	}
	s.ask(t, "PUT", "/misfit-2", `{`+aliased+`}`, nil)
	if _, err := store.Facts(t.Context()); !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), "2 indexes") {
		t.Errorf("facts: err = %v", err)
	}
	s.ask(t, "DELETE", "/misfit-1", "", nil)
	s.ask(t, "DELETE", "/misfit-2", "", nil)
	_, err := searchstore.Open(t.Context(), client(t, s.Address), searchstore.Options{Alias: "misfit"})
	if err == nil || !strings.Contains(err.Error(), "searchstore.Create") {
		t.Errorf("err = %v", err)
	}
}

// gone: OpenSearch would create the index even for a write that it refuses.
func gone(t *testing.T, s *server) {
	s.create(t, "gone")
	store := open(t, client(t, s.Address), "gone")
	item, err := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.ask(t, "DELETE", "/gone-000001", "", nil)
	_, got := store.Get(t.Context(), "orders")
	_, created := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil)
	_, swapped := store.Swap(t.Context(), item, nil, nil)
	for what, err := range map[string]error{"get": got, "create": created, "swap": swapped, "delete": store.Delete(t.Context(), item)} {
		if err == nil || errors.Is(err, cas.ErrConflict) {
			t.Errorf("%s: err = %v", what, err)
		}
	}
	for item, err := range store.List(t.Context(), "") {
		if err == nil {
			t.Errorf("listed: %+v", item)
		}
	}
	var left map[string]any
	s.ask(t, "GET", "/gon*", "", &left)
	if len(left) > 0 {
		t.Errorf("there is an index: %v", left)
	}
}

func forgotten(t *testing.T, s *server) {
	alias := s.alias(t)
	s.ask(t, "PUT", "/"+alias+"/_settings", `{"index.gc_deletes":"0s"}`, nil)
	store := open(t, client(t, s.Address), alias)
	item, err := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil)
	if err == nil {
		err = store.Delete(t.Context(), item)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.ask(t, "POST", "/"+alias+"/_flush?force=true", "", nil)
	s.ask(t, "POST", "/"+alias+"/_forcemerge?max_num_segments=1", "", nil)
	if _, err := store.Swap(t.Context(), item, nil, nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("err = %v", err)
	}
	again, err := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil)
	if err != nil || again.Number <= item.Number {
		t.Errorf("%+v follows %+v, %v", again, item, err)
	}
	if err := store.Delete(t.Context(), item); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("err = %v", err)
	}
}

// twice sends each write twice, as nodes of OpenSearch do when the primary shard moves, and calls
// between in between.
type twice struct {
	http.RoundTripper
	between func()
}

func (w twice) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method != http.MethodPut {
		return w.RoundTripper.RoundTrip(q)
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	first, second := q.Clone(q.Context()), q.Clone(q.Context())
	first.Body, second.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
	r, err := w.RoundTripper.RoundTrip(first)
	if err != nil {
		return nil, err
	}
	_ = r.Body.Close()
	w.between()
	return w.RoundTripper.RoundTrip(second)
}

func repeated(t *testing.T, s *server) {
	alias := s.alias(t)
	other := open(t, client(t, s.Address), alias)
	between := func() {}
	c, err := opensearch.NewClient(opensearch.Config{
		Addresses: []string{"http://" + s.Address}, DisableRetry: true, Transport: twice{&http.Transport{}, func() { between() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	store := open(t, c, alias)
	item := cas.Item{Key: "orders"}
	for n := range 20 {
		if item, err = store.Swap(t.Context(), item, fmt.Append(nil, n), nil); err != nil {
			t.Fatal(err)
		}
		if now, err := other.Get(t.Context(), "orders"); err != nil || now.Version != item.Version || now.Number != item.Number {
			t.Fatalf("swap has returned %+v, and it is %+v, %v", item, now, err)
		}
	}
	between = func() {
		for range 10 {
			now, err := other.Get(t.Context(), "orders")
			if err == nil {
				_, err = other.Swap(t.Context(), now, nil, nil)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, err = store.Swap(t.Context(), item, nil, nil); err == nil || errors.Is(err, cas.ErrConflict) {
		t.Errorf("replaced by others: err = %v", err)
	}
	if _, err = store.Swap(t.Context(), item, nil, nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("not as seen: err = %v", err)
	}
	between = func() {}
	if item, err = store.Get(t.Context(), "orders"); err == nil {
		err = store.Delete(t.Context(), item)
	}
	if err != nil {
		t.Errorf("delete: err = %v", err)
	}
}

func left(t *testing.T, s *server) {
	alias := s.alias(t)
	store := open(t, client(t, s.Address), alias)
	s.ask(t, "PUT", "/"+alias+"/_doc/orders", `{"epochfence":{"writes":"A","note":"","value":""}}`, nil)
	for item, err := range store.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", item, err)
	}
	item, err := store.Get(t.Context(), "orders")
	if err != nil || item.Live || item.Version == "" {
		t.Fatalf("%+v, %v", item, err)
	}
	if err := store.Delete(t.Context(), item); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("delete: err = %v", err)
	}
	if _, err := store.Swap(t.Context(), item, []byte("x"), nil); err != nil {
		t.Error(err)
	}
}

func full(t *testing.T, s *server) {
	alias := s.alias(t)
	store := open(t, client(t, s.Address), alias)
	// OpenSearch itself does this when a disk has less than 5 % free space.
	s.ask(t, "PUT", "/"+alias+"/_settings", `{"index.blocks.read_only_allow_delete":true}`, nil)
	if _, err := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil); !errors.Is(err, cas.ErrFull) {
		t.Errorf("err = %v", err)
	}
}

// restored returns the versions of a write that a snapshot lacks, and of one after the snapshot was
// restored, twice.
func (s *server) restored(t *testing.T, remove func(index string)) (lost, now cas.Item, before, after cas.Facts) {
	t.Helper()
	alias := s.alias(t)
	store := open(t, client(t, s.Address), alias)
	if _, err := store.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("1"), nil); err != nil {
		t.Fatal(err)
	}
	snapshot := "/_snapshot/repo/" + alias
	s.ask(t, "PUT", snapshot+"?wait_for_completion=true", fmt.Sprintf(`{"indices":"%s-000001"}`, alias), nil)
	for n := range 2 {
		lost, before = now, after
		remove("/" + alias + "-000001")
		s.ask(t, "POST", snapshot+"/_restore?wait_for_completion=true", "", nil)
		item, err := store.Get(t.Context(), "orders")
		if err == nil {
			now, err = store.Swap(t.Context(), item, fmt.Append(nil, n), nil)
		}
		if err == nil {
			after, err = store.Facts(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return lost, now, before, after
}

func restoredOver(t *testing.T, s *server) {
	lost, now, before, after := s.restored(t, func(index string) { s.ask(t, "POST", index+"/_close", "", nil) })
	if numbers(lost) == numbers(now) || before.Source == after.Source {
		t.Errorf("%+v and %+v, of %s and %s", lost, now, before.Source, after.Source)
	}
}

// restoredInstead is why [cas.Facts.Repeats] is set: without it, this would be a mistake.
func restoredInstead(t *testing.T, s *server) {
	lost, now, before, after := s.restored(t, func(index string) { s.ask(t, "DELETE", index, "", nil) })
	if numbers(lost) != numbers(now) || lost.Version == now.Version || before.Source == after.Source {
		t.Errorf("%+v and %+v, of %s and %s", lost, now, before.Source, after.Source)
	}
}

// numbers returns what the server compares of a version.
func numbers(item cas.Item) string {
	return strings.Join(strings.SplitN(item.Version, ".", 3)[:2], ".")
}

func TestAClientThatRepeatsRequestsIsRefused(t *testing.T) {
	c, err := opensearch.NewClient(opensearch.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := searchstore.Open(t.Context(), c, searchstore.Options{}); err == nil || !strings.Contains(err.Error(), "DisableRetry") {
		t.Errorf("err = %v", err)
	}
}
