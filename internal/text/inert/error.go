// Package inert takes errors and panic values of users' code and makes them harmless.
//
// An error's methods are its author's code. They may panic, as those of a typed nil do,
// end the goroutine, or never return. [Error] calls Error and Unwrap once, at the place where the
// error was returned, and keeps the answers. Everything later works on those.
package inert

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"
)

// maxLinks limits the errors taken from one chain, which may be a cycle or a tree.
const maxLinks = 1000

// patience limits the calls of the methods of one chain.
const patience = 5 * time.Second

// Mark is the argument of a method Inert, which says that an error's methods call no user's code.
// [Error] leaves such an error as it is. No other module can name the type.
type Mark struct{}

// taken is one error of a chain. [errors.Is] and [errors.As] find the error of, if that is safe.
type taken struct {
	text   string
	of     error // nil if it is not safe
	asks   bool  // of has methods Is or As
	causes []error
	stuck  *atomic.Pointer[string] // the method Is or As that has not returned; the chain's
}

// Error returns an error with the text of err and with its chain, whose methods return and never
// panic. A typed nil, and an error whose methods Error or Unwrap do not return, is in the chain as
// a text that names its type. Nil stays nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	k := &taking{left: maxLinks, stuck: new(atomic.Pointer[string])}
	of, is := k.take(err).(*taken) //nolint:errorlint // what take has made
	if !is {
		return err
	}
	if k.flaw != "" && k.flaw != of.text {
		of.text += " (in it is " + k.flaw + ")"
	}
	return of
}

type taking struct {
	left  int
	flaw  string // the first that was found
	stuck *atomic.Pointer[string]
}

func (k *taking) take(err error) error {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return k.flawed("a nil %T in a variable of type error, which is not nil: return nil itself instead", err)
	}
	if _, is := err.(interface{ Inert(Mark) }); is {
		return err
	}
	k.left--
	t := &taken{of: err, stuck: k.stuck}
	var how ending
	if t.text, how = apart(err.Error); how != "" {
		t = k.flawed("a %T whose method Error %s", err, how)
	}
	if how == hangs {
		k.left = 0
		return t
	}
	causes, how := apart(func() []error { return unwrap(err) })
	if how != "" {
		if how == hangs {
			k.left = 0
		}
		return k.flawed("a %T whose method Unwrap %s", err, how)
	}
	for _, cause := range causes {
		if cause != nil && k.left > 0 {
			t.causes = append(t.causes, k.take(cause))
		}
	}
	switch t.of.(type) { //nolint:errorlint // this link alone
	case interface{ Is(error) bool }, interface{ As(any) bool }:
		t.asks = true
	}
	return t
}

// flawed stands for an error that is not safe to have.
func (k *taking) flawed(format string, args ...any) *taken {
	t := &taken{text: fmt.Sprintf(format, args...), stuck: k.stuck}
	if k.flaw == "" {
		k.flaw = t.text
	}
	return t
}

func unwrap(err error) []error {
	switch err := err.(type) { //nolint:errorlint // this link alone
	case interface{ Unwrap() error }:
		return []error{err.Unwrap()}
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	default:
		return nil
	}
}

func (t *taken) Error() string {
	if stuck := t.stuck.Load(); stuck != nil {
		return t.text + " (in it is " + *stuck + ")"
	}
	return t.text
}

func (t *taken) Unwrap() []error { return t.causes }

// Inert says that t is one already.
func (t *taken) Inert(Mark) {}

func (t *taken) Is(target error) bool {
	if t.of == nil || target == nil {
		return false
	}
	if same, _ := try(func() bool { return t.of == target }); same { // values that cannot be compared panic
		return true
	}
	if !t.asks {
		return false
	}
	of, is := t.of.(interface{ Is(error) bool })
	return is && t.ask("Is", func() bool { return of.Is(target) })
}

func (t *taken) As(target any) bool {
	if t.of == nil {
		return false
	}
	if p, is := target.(**probe); is {
		if (*p).is(t.of) {
			(*p).found = t.of
		}
		return (*p).found != nil
	}
	into := reflect.ValueOf(target)
	if into.Kind() != reflect.Pointer || into.IsNil() {
		return false
	}
	if of := reflect.ValueOf(t.of); of.Type().AssignableTo(into.Type().Elem()) {
		into.Elem().Set(of)
		return true
	}
	if !t.asks {
		return false
	}
	of, is := t.of.(interface{ As(any) bool })
	found := reflect.New(into.Type().Elem()) // the method may set it later
	if !is || !t.ask("As", func() bool { return of.As(found.Interface()) }) {
		return false
	}
	into.Elem().Set(found.Elem())
	return true
}

// ask calls a method of the error, unless one of the chain has not returned.
func (t *taken) ask(method string, f func() bool) bool {
	if t.stuck.Load() != nil {
		return false
	}
	yes, how := apart(f)
	if how == hangs {
		t.stuck.Store(new(fmt.Sprintf("a %T whose method %s %s", t.of, method, how)))
	}
	return yes
}

// As returns the first error in err's chain that is an E. Unlike [errors.As] it never
// panics, whatever is in the chain.
func As[E error](err error) (found E, ok bool) {
	ok = errors.As(Error(err), &found)
	return found, ok
}

// Find returns the first error in err's chain for which is returns true, or nil. It skips errors
// that are not safe to have. Like [errors.As], it looks behind an error with a method As.
func Find(err error, is func(error) bool) error {
	p := &probe{is: is}
	errors.As(Error(err), &p)
	return p.found
}

// probe is a target for As that an error of a chain answers for itself.
type probe struct {
	error
	is    func(error) bool
	found error
}

// Try calls f, a method of a user's value, and returns its result, or the zero value if f does not
// return one.
func Try[T any](f func() T) T {
	v, _ := apart(f)
	return v
}

// Text returns the text of a panic's value. Package fmt recovers a panic of its methods, unless the
// value of that panic panics too when it is printed.
func Text(value any) string {
	text, how := apart(func() string { return printed(value) })
	if how != "" {
		return unprintable(value)
	}
	return text
}

func printed(value any) string {
	text, panicked := try(func() string { return fmt.Sprint(value) })
	if panicked != nil {
		return unprintable(value)
	}
	return text
}

func unprintable(value any) string { return fmt.Sprintf("a %T that cannot be printed", value) }

func try[T any](f func() T) (v T, panicked any) {
	defer func() { panicked = recover() }()
	return f(), nil
}

// ending is how a call ended that returned nothing, or "".
type ending string

const hangs = ending("has not returned")

// apart calls f on another goroutine, which f may end or keep.
func apart[T any](f func() T) (T, ending) {
	type answer struct {
		v   T
		how ending
	}
	answers := make(chan answer, 1)
	go func() {
		a := answer{how: "ended its goroutine"}
		defer func() { answers <- a }()
		v, panicked := try(f)
		if panicked != nil {
			a.how = ending("panicked: " + printed(panicked))
			return
		}
		a = answer{v: v}
	}()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case a := <-answers:
		return a.v, a.how
	case <-limit.C:
		return answer{}.v, hangs
	}
}

// Short returns the beginning of a name that may be of any length.
func Short(name string) string {
	const most = 260
	if len(name) <= most {
		return name
	}
	return name[:most] + "..."
}
