package operate

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// This file cuts texts to what every store can keep. Escaping for a terminal or a page is left to
// those who show them.

// MaxText is the limit of the bytes that a sink keeps of an error, or of the reason of a [Decision].
const MaxText = 2000

// Text returns s as every store can keep it: valid UTF-8 without NUL bytes, cut to limit bytes.
func Text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// ErrorText returns the text of an error as sinks keep it, of at most [MaxText] bytes. A text that was cut
// ends with the number of its bytes.
func ErrorText(err error) string {
	if err == nil {
		return "unknown"
	}
	text := fmt.Sprint(err) // whose methods may panic
	if len(text) <= MaxText {
		return Text(text, MaxText)
	}
	end := fmt.Sprintf("… (%d bytes)", len(text))
	return Text(text, MaxText-len(end)) + end
}
