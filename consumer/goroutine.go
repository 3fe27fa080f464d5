package consumer

import (
	"bytes"
	"runtime"
	"strings"
)

// goroutineName is how stack traces name the goroutine that calls it.
func goroutineName() string {
	var buf [64]byte
	name, _, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ["))
	return string(name)
}

// maxStacks bounds the memory in which the stacks of all goroutines are searched for one.
const maxStacks = 64 << 20

// stackOf returns the stack of a goroutine from the innermost frame to where this package
// called it, or all of it where the package did not. It is empty if the goroutine was not
// found. The process stands still meanwhile, for some microseconds for each goroutine.
func stackOf(name string) string {
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

const thisPackage = "github.com/epochfence/epochfence/consumer."

// frameOf is the innermost frame of a stack that is not the standard library's, with its
// file and line, or "".
func frameOf(stack string) string {
	if frames := framesOf(stack, 1); len(frames) > 0 {
		return frames[0]
	}
	return ""
}

// framesOf are the innermost frames of a stack that are not the standard library's, up to
// this package's, and at most so many.
func framesOf(stack string, most int) (frames []string) {
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

// standard reports whether a function is one of the standard library that blocks, or calls
// what does.
func standard(function string) bool {
	top, _, _ := strings.Cut(function, ".")
	top, _, _ = strings.Cut(top, "/")
	switch top {
	case "runtime", "internal", "sync", "time", "net", "os", "io", "bufio", "syscall", "context", "database", "crypto", "encoding", "reflect", "testing", "bytes", "fmt", "log":
		return true
	}
	return false
}
