// Package verdict runs a test and reports whether it failed, for tests that a suite fails for broken
// code.
package verdict

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Of runs play in a goroutine, with a [testing.TB] that does not fail t. It returns whether play
// failed or panicked, and its log.
func Of(t testing.TB, play func(t testing.TB)) (failed bool, said string) {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // Fatal ends the goroutine
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		play(r)
	}()
	<-done
	return r.Failed(), strings.Join(r.said, "\n")
}

type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	said   []string
}

func (r *recorder) record(failed bool, said string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.said = append(r.said, said)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Fail()                             { r.record(true, "") }
func (r *recorder) FailNow()                          { r.Fail(); runtime.Goexit() }
func (r *recorder) Log(args ...any)                   { r.record(false, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any)   { r.record(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.record(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.record(true, fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) SkipNow()                          { runtime.Goexit() }
func (r *recorder) Skip(args ...any)                  { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(format string, args ...any)  { r.Logf(format, args...); r.SkipNow() }

// TB is a [testing.TB] with checks of one line, for the worlds of suites.
type TB struct{ testing.TB }

// Wantf fails the test unless ok.
func (t TB) Wantf(ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// Mustf fails and ends the test unless ok.
func (t TB) Mustf(ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// NoErrorf ends the test with the text and err, if there is one.
func (t TB) NoErrorf(err error, format string, args ...any) {
	if err != nil {
		t.Helper()
		t.Fatalf(format+": %v", append(args, err)...)
	}
}

// NoError ends the test with err, if there is one.
func (t TB) NoError(err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
