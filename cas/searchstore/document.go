package searchstore

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/epochfence/epochfence/cas"
)

// This file decides how an item is kept in a document, and which values can be the document
// itself. searchstore.go sends it.

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
