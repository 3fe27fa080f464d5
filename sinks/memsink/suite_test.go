package memsink_test

import (
	"context"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

func create(testing.TB) sinktest.Database[*memsink.Tx] {
	s := memsink.New()
	return sinktest.Database[*memsink.Tx]{
		Open: func(testing.TB) epoch.Sink[*memsink.Tx] { return s.Open() },
		Append: func(_ context.Context, tx *memsink.Tx, list, value string) error {
			tx.Append(list, value)
			return nil
		},
		List:       func(_ context.Context, list string) ([]string, error) { return s.List(list), nil },
		Operator:   func(testing.TB) operate.Operator { return s.Operator() },
		DeadLetter: s.DeadLetter,
	}
}

func TestSuite(t *testing.T)          { sinktest.Run(t, create) }
func TestSuiteUnblocked(t *testing.T) { sinktest.RunUnblocked(t, create) }
func TestSuiteOperated(t *testing.T)  { sinktest.RunOperated(t, create) }
