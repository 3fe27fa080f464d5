package inert_test

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/text/inert"
)

var errSentinel = errors.New("sentinel")

// hostile does in each of its methods what the field of that name says.
type hostile struct {
	text   func() string
	is     func(error) bool
	as     func(any) bool
	unwrap func() error
}

func (h hostile) Error() string {
	if h.text == nil {
		return "hostile"
	}
	return h.text()
}
func (h hostile) Is(target error) bool { return h.is != nil && h.is(target) }
func (h hostile) As(target any) bool   { return h.as != nil && h.as(target) }
func (h hostile) Unwrap() error {
	if h.unwrap == nil {
		return errSentinel
	}
	return h.unwrap()
}

// uncomparable panics where it is compared with another one.
type uncomparable struct{ of any }

func (uncomparable) Error() string { return "uncomparable" }

// endless is its own cause, until it has been asked more often than is right.
type endless struct{ asked *int }

func (e endless) Error() string { return "endless" }
func (e endless) Unwrap() error {
	if *e.asked++; *e.asked > 5000 {
		return nil
	}
	return e
}

type panics struct{}

func (panics) String() string { panic(panics{}) }

// TestNothingThatAnErrorHasPanics: or blocks, whatever is asked of it.
func TestNothingThatAnErrorHasPanics(t *testing.T) {
	var none *fs.PathError
	asked := 0
	for name, c := range map[string]struct {
		err  error
		text string
		has  bool // the sentinel is still found
	}{
		"plain":                 {fmt.Errorf("reserve: %w", errSentinel), "reserve: sentinel", true},
		"a typed nil":           {none, "a nil *fs.PathError", false},
		"a typed nil in %w":     {fmt.Errorf("reserve: %w", none), "reserve: <nil> (in it is a nil *fs.PathError", false},
		"a typed nil in a join": {errors.Join(errSentinel, fmt.Errorf("x: %w", none)), "in it is a nil *fs.PathError", true},
		"Error panics":          {hostile{text: func() string { panic("boom") }}, "hostile whose method Error panicked: boom", true},
		"Error panics with what panics": {hostile{text: func() string { panic(panics{}) }},
			"panicked: a inert_test.panics that cannot be printed", true},
		"Is panics":          {hostile{is: func(error) bool { panic("boom") }}, "hostile", true},
		"Is ends goroutines": {hostile{is: func(error) bool { runtime.Goexit(); return true }}, "hostile", true},
		"As panics":          {hostile{as: func(any) bool { panic("boom") }}, "hostile", true},
		"As ends goroutines": {hostile{as: func(any) bool { runtime.Goexit(); return true }}, "hostile", true},
		"Unwrap panics":      {hostile{unwrap: func() error { panic("boom") }}, "hostile whose method Unwrap panicked: boom", false},
		"Error blocks":       {hostile{text: func() string { <-time.After(time.Hour); return "" }}, "hostile whose method Error has not returned", false},
		"Is blocks":          {hostile{is: func(error) bool { <-time.After(time.Hour); return true }}, "hostile", true},
		"As blocks":          {hostile{as: func(any) bool { <-time.After(time.Hour); return true }}, "hostile", true},
		"Unwrap blocks":      {hostile{unwrap: func() error { <-time.After(time.Hour); return nil }}, "hostile whose method Unwrap has not returned", false},
		"a typed nil within": {hostile{unwrap: func() error { return none }}, "in it is a nil *fs.PathError", false},
		"uncomparable":       {errors.Join(uncomparable{[]int{1}}, errSentinel), "uncomparable\nsentinel", true},
		"endless":            {endless{&asked}, "endless", false},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(t *testing.T) {
				err := fmt.Errorf("sink: %w", inert.Error(c.err))
				if !strings.Contains(err.Error(), c.text) {
					t.Errorf("the text is %q; want %q", err, c.text)
				}
				if errors.Is(err, errSentinel) != c.has {
					t.Errorf("the sentinel is found: %v", !c.has)
				}
				if errors.Is(err, uncomparable{[]int{1}}) {
					t.Error("found what cannot be compared")
				}
				var path *fs.PathError
				if errors.As(err, &path) {
					t.Errorf("found a %T that is nil: %v", path, path == nil)
				}
			}
			if !strings.Contains(name, "blocks") {
				ask(t)
				return
			}
			bubble.Test(t, func(t *testing.T) {
				began := time.Now()
				ask(t)
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
				<-time.After(time.Hour) // for what blocks
			})
		})
	}
	if asked > 2000 {
		t.Errorf("an error without an end was asked %d times for its cause", asked)
	}
}

func TestWhatIsSafeIsFoundAsItWas(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: errSentinel}
	err := inert.Error(fmt.Errorf("reserve: %w", path))
	var found *fs.PathError
	if !errors.As(err, &found) || found != path || !errors.Is(err, path) || !errors.Is(err, errSentinel) {
		t.Errorf("not found in %v", err)
	}
	code, ok := inert.As[*fs.PathError](path)
	if !ok || code != path {
		t.Errorf("As: %v, %v", code, ok)
	}
	asked := inert.Error(hostile{is: func(target error) bool { return target == fs.ErrExist }})
	if !errors.Is(asked, fs.ErrExist) {
		t.Error("its method Is was not asked")
	}
	if inert.Error(nil) != nil {
		t.Error("nil is an error")
	}
	if again := inert.Error(err); again != err {
		t.Error("taken twice")
	}
}

// covered is an error that shows what is behind it by a method As alone, as package consumer's does.
type covered struct{ err error }

func (c covered) Error() string      { return c.err.Error() }
func (c covered) Inert(inert.Mark)   {}
func (c covered) As(target any) bool { return errors.As(c.err, target) }

func TestFindLooksBehindAllThatAsLooksBehind(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: errSentinel}
	is := func(err error) bool { return err == error(path) }
	for name, err := range map[string]error{
		"itself":  path,
		"wrapped": fmt.Errorf("reserve: %w", path),
		"joined":  errors.Join(errSentinel, path),
		"covered": covered{inert.Error(fmt.Errorf("reserve: %w", path))},
		"both":    fmt.Errorf("commit: %w", covered{inert.Error(errors.Join(errSentinel, path))}),
	} {
		if found := inert.Find(err, is); found != error(path) {
			t.Errorf("%s: found %v", name, found)
		}
	}
	if found := inert.Find(covered{inert.Error(errSentinel)}, is); found != nil {
		t.Errorf("found %v where there is none", found)
	}
}
