package outbox

import (
	"strings"
	"unicode/utf8"
)

// This file decides which texts an entry may have, so that every database can store it. entry.go
// checks the rest.

// cleanText reports whether every database accepts s as text.
func cleanText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
