package outbox

import (
	"strings"
	"unicode/utf8"
)

// cleanText is what every database takes as text.
func cleanText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
