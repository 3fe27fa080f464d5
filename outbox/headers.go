package outbox

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// This file has the one form in which stores keep the headers of entries. entry.go decides which
// headers an entry may have.

// MarshalHeader returns an entry's header as a [Store] keeps it: a JSON object of lists.
func MarshalHeader(h http.Header) (string, error) {
	if h == nil {
		h = http.Header{}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("outbox: write a header: %w", err)
	}
	return string(text), nil
}

// UnmarshalHeader parses the text that [MarshalHeader] returns.
func UnmarshalHeader(text string) (http.Header, error) {
	var h http.Header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, fmt.Errorf("outbox: read a header: %w", err)
	}
	return h, nil
}
