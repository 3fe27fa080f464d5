package consumertest

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// Calls is another system, which counts how often it was called. Calls with one idempotency key count once. A handler
// calls it through net/http/httptest, or a fake of the user's calls [Calls.Add]. The zero value works.
type Calls struct {
	mu   sync.Mutex
	keys []string // of the calls that count
	all  int
}

// Add counts a call with an idempotency key. The empty key is none.
func (c *Calls) Add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all++; key == "" {
		key = fmt.Sprintf("call %d without a key", c.all)
	}
	if !slices.Contains(c.keys, key) {
		c.keys = append(c.keys, key)
	}
}

// ServeHTTP answers 200. It counts a request that is neither GET nor HEAD, with its header Idempotency-Key.
func (c *Calls) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		c.Add(r.Header.Get("Idempotency-Key"))
	}
}

// Keys returns the keys of the calls that count, in the order of the first calls.
func (c *Calls) Keys() []string {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.keys)
}
