//go:build race

package bubble

import (
	"runtime"
	"sync"
)

const raced = true

var (
	mu         sync.Mutex
	bubbles    int // that are open now
	processors int // before the first of them
)

// oneProcessor takes all processors but one away until the last of those who asked releases.
func oneProcessor() (release func()) {
	mu.Lock()
	defer mu.Unlock()
	if bubbles++; bubbles == 1 {
		processors = runtime.GOMAXPROCS(1)
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if bubbles--; bubbles == 0 {
			runtime.GOMAXPROCS(processors)
		}
	}
}
