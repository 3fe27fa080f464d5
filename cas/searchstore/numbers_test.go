package searchstore_test

import (
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestRealWhichNumbersGrow(t *testing.T) {
	s := start(t)
	s.ask(t, "PUT", "/locks", `{"settings":{"index.number_of_replicas":0}}`, nil)
	written := 0
	var last struct {
		SeqNo int64 `json:"_seq_no"`
	}
	tokentest.Show(t, tokentest.Server{
		Name: "OpenSearch",
		Write: func(t testing.TB) {
			written++
			s.ask(t, "PUT", "/locks/_doc/lock?refresh=true", fmt.Sprintf(`{"n":%d}`, written), &last)
		},
		Delete: func(t testing.TB) { s.ask(t, "DELETE", "/locks/_doc/lock?refresh=true", "", nil) },
		Backup: func(t testing.TB) func() {
			s.ask(t, "PUT", "/_snapshot/repo/locks?wait_for_completion=true", `{"indices":"locks"}`, nil)
			return func() {
				s.ask(t, "DELETE", "/locks", "", nil)
				s.ask(t, "POST", "/_snapshot/repo/locks/_restore?wait_for_completion=true", `{"indices":"locks"}`, nil)
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"_seq_no": func(testing.TB) int64 { return last.SeqNo },
		},
	})
}
