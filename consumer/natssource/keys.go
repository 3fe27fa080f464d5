package natssource

import (
	"fmt"
	"strconv"
	"strings"
)

type streamPartition struct {
	stream string
	number int32
}

func (p streamPartition) String() string { return p.stream + "/" + strconv.Itoa(int(p.number)) }

// keys builds the keys of one group:
//
//	<group>.member.<id>
//	<group>.lease.<stream>.<number>
//	<group>.position.<stream>.<number>
type keys struct {
	prefix string // "<group>."
}

func newKeys(group string) keys { return keys{escape(group) + "."} }

func (k keys) member(id string) string           { return k.prefix + "member." + id }
func (k keys) lease(p streamPartition) string    { return k.prefix + "lease." + k.of(p) }
func (k keys) position(p streamPartition) string { return k.prefix + "position." + k.of(p) }

func (keys) of(p streamPartition) string { return escape(p.stream) + "." + strconv.Itoa(int(p.number)) }

func (k keys) parseLease(key string) (streamPartition, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"lease.")
	if !ok {
		return streamPartition{}, false
	}
	stream, number, ok := strings.Cut(rest, ".")
	if !ok {
		return streamPartition{}, false
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return streamPartition{}, false
	}
	name, err := unescape(stream)
	p := streamPartition{name, int32(n)}
	return p, err == nil && k.lease(p) == key // no other spelling of it
}

func (k keys) parseMember(key string) (id string, ok bool) {
	return strings.CutPrefix(key, k.prefix+"member.")
}

// escape turns any name into one token of a key. Different names give different tokens.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "=%02X", c)
	}
	return b.String()
}

func unescape(token string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '=' {
			b.WriteByte(token[i])
			continue
		}
		if i+2 >= len(token) {
			return "", fmt.Errorf("natssource: %q ends within an escape", token)
		}
		c, err := strconv.ParseUint(token[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("natssource: %q holds an escape that is none: %w", token, err)
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}
