package outbox_test

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/epochfence/epochfence/outbox"
)

// These bytes are frozen: processes of other versions read and write them.
func TestTheStoredFormOfVersion1OfAHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]http.Header{`{"A":["b","c"],"D":[]}`: {"A": {"b", "c"}, "D": {}}, `{}`: {}} {
		if got, err := outbox.MarshalHeader(want); err != nil || got != text {
			t.Errorf("written: %s, %v; want %s", got, err, text)
		}
		if got, err := outbox.UnmarshalHeader(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read: %v, %v; want %v", got, err, want)
		}
	}
}
