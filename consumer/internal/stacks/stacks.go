// Package stacks finds the stack of a call that hangs, and the frames in it that an operator should read.
package stacks

import (
	"bytes"
	"runtime"
	"strings"
)

// Name returns the name of the calling goroutine in stack traces.
func Name() string {
	var buf [64]byte
	name, _, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ["))
	return string(name)
}

// maxStacks limits the memory for the stacks of all goroutines. Above it, the stack of a hung call
// may be missing from its report.
const maxStacks = 64 << 20

// Of returns the stack of a goroutine from the innermost frame to the call by package consumer, or
// all of it if that package is not in it. It returns "" if there is no such goroutine. It stops the
// process for some microseconds for each goroutine.
func Of(name string) string {
	size := 1 << 20
	buf := make([]byte, size)
	n := runtime.Stack(buf, true)
	for n == size && size < maxStacks {
		size *= 4
		buf = make([]byte, size)
		n = runtime.Stack(buf, true)
	}
	all := "\n\n" + string(buf[:n])
	_, stack, found := strings.Cut(all, "\n\n"+name+" [")
	if !found {
		return ""
	}
	stack, _, _ = strings.Cut(stack, "\n\n")
	stack = strings.TrimSuffix(name+" ["+stack, "\n")
	if ours := strings.Index(stack, "\n"+thisPackage); ours >= 0 && strings.Contains(stack[:ours], "\n") {
		stack = stack[:ours]
	}
	return stack
}

// thisPackage is where a stack leaves the user's code.
const thisPackage = "github.com/epochfence/epochfence/consumer."

// Frame returns the frame in which a call is blocked, as far as a user can change it: the
// innermost one outside the standard library.
func Frame(stack string) string {
	if frames := Frames(stack, 1); len(frames) > 0 {
		return frames[0]
	}
	return ""
}

// Frames returns the innermost frames outside the standard library, up to most. It
// stops at a frame of package consumer.
func Frames(stack string, most int) (frames []string) {
	lines := strings.Split(stack, "\n")
	for i := 1; i+1 < len(lines) && len(frames) < most; i += 2 {
		function, at := lines[i], lines[i+1]
		if strings.HasPrefix(function, thisPackage) && len(frames) > 0 {
			break
		}
		if standard(function) || !strings.HasPrefix(at, "\t") {
			continue
		}
		if open := strings.LastIndex(function, "("); open > 0 {
			function = function[:open]
		}
		at, _, _ = strings.Cut(strings.TrimSpace(at), " ")
		frames = append(frames, function+" ("+at+")")
	}
	return frames
}

// standard reports whether a function is in a part of the standard library that may block.
func standard(function string) bool {
	top, _, _ := strings.Cut(function, ".")
	top, _, _ = strings.Cut(top, "/")
	switch top {
	case "runtime", "internal", "sync", "time", "net", "os", "io", "bufio", "syscall", "context", "database", "crypto", "encoding", "reflect", "testing", "bytes", "fmt", "log":
		return true
	}
	return false
}
