package guardtest_test

import (
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/memstore"
)

func TestItemsInMemory(t *testing.T) {
	guardtest.Run(t, func(testing.TB) castest.Rig {
		s := memstore.New()
		return castest.Rig{Open: func(testing.TB, func(string) string) cas.Store { return s }}
	})
}
