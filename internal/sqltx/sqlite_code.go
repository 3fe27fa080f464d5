package sqltx

import (
	"errors"
	"reflect"

	"github.com/epochfence/epochfence/internal/inert"
)

// resultCode finds the error of a driver of SQLite's in err, and SQLite's result code
// for it: https://www.sqlite.org/rescode.html. It is nil if there is none.
func resultCode(err error) (code int, of error) {
	err = inert.Error(err) // a method of an argument's, or the handler, may have returned it
	var e interface {
		error
		Code() int
	}
	if errors.As(err, &e) {
		return inert.Try(e.Code), e
	}
	return mattnCode(err)
}

// mattnCode knows the errors of github.com/mattn/go-sqlite3, which have the code in a
// field. To name their type would make every user of this package build that driver.
func mattnCode(err error) (code int, of error) {
	of = inert.Find(err, func(err error) bool {
		v := reflect.ValueOf(err)
		if v.Kind() != reflect.Struct || v.Type().PkgPath() != "github.com/mattn/go-sqlite3" {
			return false
		}
		f := v.FieldByName("ExtendedCode")
		if !f.IsValid() || !f.CanInt() {
			return false
		}
		code = int(f.Int())
		return true
	})
	return code, of
}
