package cas

import (
	"fmt"
	"strings"
)

// This file maps keys to names that a limited store accepts, and back. A driver decides whether it
// needs that.

// Join returns a key of parts between slashes. A slash or a percent sign within a part is written as
// in URLs, so different parts give different keys.
func Join(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = inPart.Replace(part)
	}
	return strings.Join(escaped, "/")
}

var inPart = strings.NewReplacer("%", "%25", "/", "%2F")

const hex = "0123456789ABCDEF"

// Escape returns key with each byte that is not an ASCII letter or digit, "-" or "_" replaced by
// "=" and two hexadecimal digits, for stores that limit which bytes a key may have. Escape(a+b) is
// Escape(a)+Escape(b), so prefixes stay prefixes.
func Escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; safe(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

func safe(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// Unescape returns the key that [Escape] was given.
func Unescape(escaped string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c == '=' {
			if i+2 >= len(escaped) {
				return "", fmt.Errorf("cas: %q ends within an escaped byte", escaped)
			}
			high, low := strings.IndexByte(hex, escaped[i+1]), strings.IndexByte(hex, escaped[i+2])
			if high < 0 || low < 0 {
				return "", fmt.Errorf("cas: %q has %q where an escaped byte should be", escaped, escaped[i:i+3])
			}
			c = byte(high<<4 | low)
			i += 2
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}
