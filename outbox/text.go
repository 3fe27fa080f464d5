package outbox

import (
	"strings"
	"unicode/utf8"
)

// cleanText reports whether every database accepts s as text.
func cleanText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
