package cas

import (
	"fmt"
	"strings"
)

const hex = "0123456789ABCDEF"

// Escape returns key with each byte that is not safe replaced by "=" and two hexadecimal digits,
// for stores that limit which bytes a key may have. "=" is never safe. Escape(a+b) is
// Escape(a)+Escape(b), so prefixes stay prefixes.
func Escape(key string, safe func(c byte) bool) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; c != '=' && safe(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
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
