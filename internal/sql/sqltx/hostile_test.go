package sqltx_test

import (
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// coded has the methods by which drivers tell their codes.
type coded struct{ n int }

func (c *coded) Error() string    { return fmt.Sprint("code ", c.n) }
func (c *coded) Code() int        { panic("Code") }
func (c *coded) SQLState() string { panic("SQLState") }

func TestAnErrorsOwnCodeMayPanic(t *testing.T) {
	for _, d := range []sqltx.Dialect{sqltx.SQLite, sqltx.PostgreSQL} {
		for _, err := range []error{&coded{}, (*coded)(nil), fmt.Errorf("wrapped: %w", &coded{})} {
			if class := d.Classify(err); class != sqltx.Refused && class != sqltx.Aborted {
				t.Errorf("%v: the class is %v", d, class)
			}
			if fault := d.Fault(err); fault != nil {
				t.Errorf("%v: %v", d, fault)
			}
		}
	}
}
