package consulstore

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/epochfence/epochfence/cas"
)

func TestALeaderWithoutRoomIsAFullStore(t *testing.T) {
	for text, c := range map[string]struct {
		status int
		full   bool
	}{
		"failed to append to logs: write raft.db: no space left on device":   {http.StatusInternalServerError, true},
		"rate limit exceeded, try again later or against a different server": {http.StatusTooManyRequests, true},
		"leadership lost while committing log":                               {http.StatusInternalServerError, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, c.status) }))
		client, err := api.NewClient(&api.Config{Address: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(client, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil); errors.Is(err, cas.ErrFull) != c.full {
			t.Errorf("%s: err = %v, is %q = %t, want %t", text, err, cas.ErrFull, !c.full, c.full)
		}
		server.Close()
	}
}
