package natsstore

import (
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file maps keys to subjects and back. A key's parts between slashes are the tokens of its
// subject, so that the server can filter by prefix. An empty token is "=".

const emptyToken = "="

// prefix begins the subjects of stored items.
func (s *Store) prefix() string { return "$KV." + s.o.Bucket + "." }

// published returns the subject to publish an item to, which in a domain is another one, as in
// nats.go's key-value store.
func (s *Store) published(key string) string {
	if p := jsapi.Prefix(s.js); p != jetstream.DefaultAPIPrefix {
		return p + s.subject(key)
	}
	return s.subject(key)
}

func (s *Store) subject(key string) string {
	tokens := strings.Split(key, "/")
	for i, t := range tokens {
		if t == "" {
			tokens[i] = emptyToken
		} else {
			tokens[i] = cas.Escape(t)
		}
	}
	return s.prefix() + strings.Join(tokens, ".")
}

// key returns the key that has the subject. ok is false if there is none.
func (s *Store) key(subject string) (key string, ok bool) {
	tokens := strings.Split(strings.TrimPrefix(subject, s.prefix()), ".")
	for i, t := range tokens {
		if t == emptyToken {
			tokens[i] = ""
			continue
		}
		part, err := cas.Unescape(t)
		if err != nil {
			return "", false
		}
		tokens[i] = part
	}
	key = strings.Join(tokens, "/")
	return key, s.subject(key) == subject
}

// filter returns the subjects of all keys that begin with prefix, and of others beside them.
func (s *Store) filter(prefix string) string {
	prefix = prefix[:min(len(prefix), maxKey)] // the server ends connections that use longer subjects
	last := strings.LastIndex(prefix, "/")
	if last < 0 {
		return s.prefix() + ">"
	}
	return s.subject(prefix[:last]) + ".>"
}

// KeyInBucket returns the name of an item's key in the bucket, for the nats command.
func (s *Store) KeyInBucket(key string) string {
	return strings.TrimPrefix(s.subject(key), s.prefix())
}
