package sqltx

import (
	"errors"
	"reflect"
)

// resultCode finds the error of a driver of SQLite's in err, and SQLite's result code
// for it: https://www.sqlite.org/rescode.html. It is nil if there is none.
func resultCode(err error) (code int, of error) {
	var e interface {
		error
		Code() int
	}
	if errors.As(err, &e) {
		return e.Code(), e
	}
	return mattnCode(err)
}

// mattnCode knows the errors of github.com/mattn/go-sqlite3, which have the code in a
// field. To name their type would make every user of this package build that driver.
func mattnCode(err error) (code int, of error) {
	for err != nil {
		v := reflect.ValueOf(err)
		if v.Kind() == reflect.Struct && v.Type().PkgPath() == "github.com/mattn/go-sqlite3" {
			if f := v.FieldByName("ExtendedCode"); f.IsValid() && f.CanInt() {
				return int(f.Int()), err
			}
		}
		if joined, is := err.(interface{ Unwrap() []error }); is {
			for _, e := range joined.Unwrap() {
				if code, of := mattnCode(e); of != nil {
					return code, of
				}
			}
			return 0, nil
		}
		err = errors.Unwrap(err)
	}
	return 0, nil
}
