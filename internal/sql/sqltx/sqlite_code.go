package sqltx

import (
	"errors"
	"reflect"

	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file finds SQLite's result code in the errors of four drivers, without importing them.
// sqlite.go decides what a code means.

// resultCode finds an SQLite driver's error in err, and its result code:
// https://www.sqlite.org/rescode.html. of is nil if there is none.
func resultCode(err error) (code int, of error) {
	err = inert.Error(err) // an argument's method or the handler may have returned it
	var e interface {
		error
		Code() int
	}
	if errors.As(err, &e) {
		return inert.Try(e.Code), e
	}
	return codeInside(err)
}

// codeInside reads the code of drivers that have it elsewhere. It does not name their types,
// because every user of this package would then build the drivers.
func codeInside(err error) (code int, of error) {
	of = inert.Find(err, func(err error) (found bool) {
		v := reflect.ValueOf(err)
		switch t := reflect.Indirect(v).Type(); t.PkgPath() {
		case "github.com/mattn/go-sqlite3": // a field
			if t.Kind() == reflect.Struct {
				code, found = integer(reflect.Indirect(v).FieldByName("ExtendedCode"))
			}
		case "github.com/ncruces/go-sqlite3": // a method of a type of its own, or the error itself
			if method := v.MethodByName("ExtendedCode"); method.IsValid() {
				v = method.Call(nil)[0]
			}
			code, found = integer(v)
		}
		return found
	})
	return code, of
}

func integer(v reflect.Value) (int, bool) {
	switch {
	case v.CanInt():
		return int(v.Int()), true
	case v.CanUint():
		return int(v.Uint()), true
	}
	return 0, false
}
