package rebuild

import (
	"os"
	"testing"

	"github.com/epochfence/epochfence/internal/show"
)

// The pods are this test binary.
func TestMain(m *testing.M) {
	show.Enter(New(NATS, Postgres).Work)
	os.Exit(m.Run())
}
