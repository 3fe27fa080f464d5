package searchstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opensearch-project/opensearch-go/v4"

	"github.com/epochfence/epochfence/cas"
)

// This file creates the index and the alias, decides which settings lose items, how an item is kept in a
// document, and which values can be the document itself. searchstore.go sends it.

// own is the field of a document that has what is not the value. A document begins with it.
const own = "epochfence"

// begins is what each document begins with.
const begins = `{"` + own + `":`

// stamp is the content of the field.
type stamp struct {
	Key    string `json:"key,omitempty"` // escaped
	Writes string `json:"writes"`        // the nonces of the last writes, the newest first
	Note   text   `json:"note"`
	Value  *text  `json:"value,omitempty"` // if it is not the rest of the document
}

// gone reports that the document is what Delete has left. List does not find it, because it has no key.
func (s stamp) gone() bool { return s.Key == "" }

// Each document has the nonces of maxWrites writes. So a write that others have replaced is found as
// long as they are fewer.
const (
	maxWrites = 16
	nonceSize = 10 // 50 bits
)

func newNonce() string { return rand.Text()[:nonceSize] }

// after returns the last writes of a document after another one.
func after(writes, nonce string) string {
	all := nonce + "." + writes
	return strings.TrimSuffix(all[:min(len(all), maxWrites*(nonceSize+1))], ".")
}

// text is bytes as a string of JSON, or as an object if they are not UTF-8.
type text []byte

type encoded struct {
	Base64 []byte `json:"base64"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal(encoded{t})
}

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = text(s)
		return nil
	}
	var e encoded
	err := json.Unmarshal(b, &e)
	*t = e.Base64
	return err
}

// join returns the document of a value. OpenSearch stores and returns its bytes as they are.
func join(value []byte, s stamp) ([]byte, error) {
	rest := []byte("}")
	if plain(value) {
		rest = value[1:]
		if bytes.TrimLeft(rest, " \t\r\n")[0] != '}' {
			rest = append([]byte(","), rest...)
		}
	} else {
		s.Value = (*text)(&value)
	}
	head, err := json.Marshal(s)
	return slices.Concat([]byte(begins), head, rest), err
}

var errForeign = fmt.Errorf("%w: the document does not begin with the field %q that this store writes; delete it, or choose another Options.Alias", cas.ErrForeign, own)

// split returns the value that join was given.
func split(document []byte) (value []byte, s stamp, err error) {
	after, ok := bytes.CutPrefix(document, []byte(begins))
	if !ok {
		return nil, stamp{}, errForeign
	}
	d := json.NewDecoder(bytes.NewReader(after))
	if err := d.Decode(&s); err != nil {
		return nil, stamp{}, errForeign
	}
	if s.Value != nil {
		return *s.Value, s, nil
	}
	rest, _ := bytes.CutPrefix(after[d.InputOffset():], []byte(","))
	return slices.Concat([]byte("{"), rest), s, nil
}

// Limits of OpenSearch: it refuses arrays within arrays beyond index.mapping.depth.limit, which is
// 20 by default, and numbers that are longer.
const (
	maxDepth  = 20
	maxNumber = 1000
)

// plain reports whether a value can be the document: it is an object of JSON, and OpenSearch takes it.
func plain(value []byte) bool {
	if len(value) < 2 || value[0] != '{' || value[len(value)-1] != '}' || !json.Valid(value) || !utf8.Valid(value) {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var open []map[string]bool // the names of each object around, or nil for an array
	isName := false
	for {
		t, err := d.Token()
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
		var inner map[string]bool
		switch t {
		case json.Delim('{'):
			inner = map[string]bool{}
			fallthrough
		case json.Delim('['):
			open = append(open, inner)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		default:
			if name, _ := t.(string); isName {
				names := open[len(open)-1]
				if names[name] || len(open) == 1 && !allowed(name) {
					return false
				}
				names[name], isName = true, false
				continue
			}
			if n, ok := t.(json.Number); ok && len(n) > maxNumber {
				return false
			}
		}
		if len(open) > maxDepth {
			return false
		}
		isName = len(open) > 0 && open[len(open)-1] != nil
	}
}

// allowed reports whether OpenSearch takes a field with the name, and does not take it for one of its
// own or of ours. A dot in a name means a field of a field.
func allowed(name string) bool {
	parts := strings.Split(name, ".")
	blank := func(part string) bool { return strings.TrimSpace(part) == "" }
	return parts[0] != own && !strings.HasPrefix(name, "_") && !slices.ContainsFunc(parts, blank)
}

// properties is the part of the mapping that List needs. Note and value are in no index of Lucene's.
const properties = `{"` + own + `":{"dynamic":"false","properties":{"key":{"type":"keyword"},"writes":{"type":"keyword","index":false}}}}`

// Create creates an index whose name is the alias and "-000001", and the alias, unless the alias
// exists. The index has the cluster's default settings, and no fields to search for. Add those with
// PUT ALIAS/_mapping, and replicas with PUT ALIAS/_settings.
//
// It needs the right to create indexes and aliases, which Open does not need.
func Create(ctx context.Context, client *opensearch.Client, o Options) error {
	name := url.PathEscape(o.alias())
	err := do(ctx, client, http.MethodGet, request{path: name}, nil)
	if kindOf(err) == "index_not_found_exception" {
		body := fmt.Appendf(nil, `{"aliases":{%q:{}},"mappings":{"dynamic":"false","properties":%s}}`, o.alias(), properties)
		err = do(ctx, client, http.MethodPut, request{path: name + "-000001", body: body}, nil)
	}
	if err != nil && kindOf(err) != "resource_already_exists_exception" {
		return fmt.Errorf("searchstore: create %q: %w", o.alias(), err)
	}
	return nil
}

// index has the settings of an index, as the server returns them.
type index struct {
	Aliases map[string]struct {
		Filter        json.RawMessage
		IndexRouting  string `json:"index_routing"`
		SearchRouting string `json:"search_routing"`
	}
	Mappings struct {
		Source     json.RawMessage `json:"_source"`
		Properties map[string]any
	}
	Settings map[string]any
}

// source returns the name of the index's history, after it has looked at the index. A snapshot that is
// restored makes another index.uuid, or over a closed index another index.history.uuid.
func (s *Store) source(ctx context.Context) (source string, err error) {
	var indexes map[string]index
	err = do(ctx, s.client, http.MethodGet, request{path: url.PathEscape(s.alias), query: url.Values{"flat_settings": {"true"}}}, &indexes)
	if kindOf(err) == "index_not_found_exception" {
		return "", fmt.Errorf("create the index with searchstore.Create: %w", err)
	}
	if err != nil {
		return "", err
	}
	if len(indexes) != 1 {
		return "", fmt.Errorf("%w: the alias has %d indexes; give it one", cas.ErrUnsuitable, len(indexes))
	}
	for _, i := range indexes {
		if wrong := i.wrong(s.alias); wrong != "" {
			return "", fmt.Errorf("%w: %s", cas.ErrUnsuitable, wrong)
		}
		source, _ = i.Settings["index.uuid"].(string)
		if history, ok := i.Settings["index.history.uuid"].(string); ok {
			source += "/" + history
		}
	}
	return source, nil
}

// wrong returns what would lose items, and what to do about it, or "".
func (i index) wrong(alias string) string {
	as, is := i.Aliases[alias]
	var want map[string]any
	if err := json.Unmarshal([]byte(properties), &want); err != nil {
		panic(err)
	}
	switch {
	case !is:
		return fmt.Sprintf("%q is no alias, so a write may create an index with another mapping; add an alias, and open that", alias)
	case as.Filter != nil || as.IndexRouting != "" || as.SearchRouting != "":
		return "the alias has a filter or a routing; use an alias that has neither"
	case !reflect.DeepEqual(i.Mappings.Properties[own], want[own]):
		return fmt.Sprintf("the index has another mapping of %q; use searchstore.Create, or: PUT %s/_mapping {\"properties\":%s}", own, alias, properties)
	case i.Mappings.Source != nil:
		return "the index leaves out parts of _source; create one that does not"
	case i.Settings["index.derived_source.enabled"] == "true":
		return "the index does not store _source; create one without index.derived_source.enabled"
	case i.Settings["index.translog.durability"] == "async":
		return fmt.Sprintf(`a crash of the server loses acknowledged writes; run: PUT %s/_settings {"index.translog.durability":"request"}`, alias)
	}
	for _, pipeline := range []string{"index.default_pipeline", "index.final_pipeline"} {
		if name, has := i.Settings[pipeline]; has && name != "_none" {
			return fmt.Sprintf("the ingest pipeline %q may change items; run: PUT %s/_settings {%q:\"_none\"}", name, alias, pipeline)
		}
	}
	return ""
}
