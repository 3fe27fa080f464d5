package s3store

import (
	"errors"
	"strings"

	"github.com/epochfence/epochfence/cas"
)

// This file maps keys to names of objects and back. Servers that keep objects as files cannot have
// both "a" and "a/b", nor long or empty names. So the parts of a key between slashes become
// directories, an empty part is "=", a longer part is divided, and each name ends in "~".

const (
	emptyPart = "="
	endOfName = "~"
	divided   = "=-/" // "=-" is no escaped byte
	maxPart   = 200
)

// name returns the name of a key's object.
func name(key string) string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		if parts[i] = part(p); p == "" {
			parts[i] = emptyPart
		}
	}
	return strings.Join(parts, "/") + endOfName
}

// prefixOf returns what the names of keys that begin with prefix begin with.
func prefixOf(prefix string) string {
	i := strings.LastIndex(prefix, "/") + 1
	if i == 0 {
		return part(prefix)
	}
	return strings.TrimSuffix(name(prefix[:i-1]), endOfName) + "/" + part(prefix[i:])
}

func part(p string) string {
	escaped := cas.Escape(p)
	var b strings.Builder
	for len(escaped) > maxPart {
		b.WriteString(escaped[:maxPart] + divided)
		escaped = escaped[maxPart:]
	}
	return b.String() + escaped
}

var errStranger = errors.New("no key has this name")

// key returns the key that name was given.
func key(of string) (string, error) {
	parts := strings.Split(strings.ReplaceAll(strings.TrimSuffix(of, endOfName), divided, ""), "/")
	for i, p := range parts {
		if p == emptyPart {
			parts[i] = ""
			continue
		}
		key, err := cas.Unescape(p)
		if err != nil {
			return "", err
		}
		parts[i] = key
	}
	if k := strings.Join(parts, "/"); name(k) == of {
		return k, nil
	}
	return "", errStranger
}
