package searchstore

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Values that OpenSearch takes as a document, and those that it does not or would not return as they
// are. TestRealStore writes them all.
var (
	PlainValues = []string{
		`{}`, `{ }`, "{\n}", `{"state":"paid"}`, `{ "a" : 1.10e3,  "b":[1,2] }`, `{"a":{"":1,"..":2,"_id":3,"epochfence":4}}`,
		`{"a.b":1}`, `{"a":[{"x":1},{"x":2}]}`, `{"a":"\ud800"}`, `{"a":"é日本😀\u0000<>&"}`, `{"a":1e99999}`, `{"a":-0.0}`,
		`{"a":12345678901234567890.1234567890}`, `{"a":null,"b":true,"c":false,"d":""}`, `{"a":` + levels(18) + `}`,
		`{"a":` + strings.Repeat("1", 1000) + `}`, `{"value":1,"key":2,"note":3}`, `{"a":1,"b":{"a":1,"c":[{"a":1}]}}`,
	}
	OtherValues = []string{
		``, `hello`, `null`, `7`, `"x"`, `[1]`, "\x00\xff", ` {"a":1}`, "{\"a\":1}\n", `{"a":1}{"b":2}`, `{"a":1`, `{"a":NaN}`, `{,}`,
		`{"epochfence":1}`, `{"epochfence.key":"other"}`, `{"_id":1}`, `{"_source":1}`, `{"_doc_count":"x"}`, `{"":1}`, `{".":1}`, `{"a..b":1}`, `{" .a":1}`,
		`{"a":1,"a":2}`, `{"a":{"b":1,"b":2}}`, `{"a":[{"b":1,"\u0062":2}]}`, "{\"a\":\"\xff\"}", "{\"\xff\":1}",
		`{"a":` + levels(30) + `}`, `{"a":` + strings.Repeat("1", 1001) + `}`,
	}
)

func levels(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestAValueIsTheDocumentIfOpenSearchTakesIt(t *testing.T) {
	for is, values := range map[bool][]string{true: PlainValues, false: OtherValues} {
		for _, value := range values {
			if got := plain([]byte(value)); got != is {
				t.Errorf("plain(%.60q) = %v", value, got)
			}
		}
	}
}

func FuzzAValueComesBackAsItWas(f *testing.F) {
	for _, value := range append(PlainValues, OtherValues...) {
		f.Add([]byte(value), []byte(value))
	}
	f.Fuzz(func(t *testing.T, value, note []byte) {
		before := bytes.Clone(value)
		document, err := join(value, stamp{Key: "orders", Writes: "n", Note: note})
		if err != nil || !json.Valid(document) {
			t.Fatalf("%q, %v", document, err)
		}
		got, s, err := split(document)
		if err != nil || !bytes.Equal(got, before) || !bytes.Equal(s.Note, note) || s.Key != "orders" || s.Writes != "n" {
			t.Errorf("%q became %q, and then %q, %+v, %v", before, document, got, s, err)
		}
		if !bytes.Equal(value, before) {
			t.Errorf("%q was changed to %q", before, value)
		}
	})
}

func TestTheNamesOfDocumentsDifferAndAreShort(t *testing.T) {
	names := map[string]string{}
	for _, key := range []string{"a", "a/", strings.Repeat("\x01", 200), strings.Repeat("\x01", 201), strings.Repeat("k", 512), strings.Repeat("k", 513), strings.Repeat("k", 514)} {
		name := id(key)
		if other, twice := names[name]; twice || len(name) > maxID {
			t.Errorf("%.20q has the name %q, as %.20q", key, name, other)
		}
		names[name] = key
	}
}
