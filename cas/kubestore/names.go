package kubestore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
)

// This file maps a key to the name of its Lease, and an item to annotations and back. kubestore.go
// decides what a write compares.

const (
	hashed = "sha256-" // begins the last part of a name that has a hash of the key

	// mostShown limits what a name with a hash shows of the key, in bytes.
	mostShown = 100
)

// NameOf returns the name of the Lease that has an item. For the key "orders/4711" that is
// "epochfence.orders.4711". If the key's parts are not valid in a name, or too long, the name ends
// with the key's SHA-256.
func (s *Store) NameOf(key string) string {
	name := s.name + "." + strings.ReplaceAll(key, "/", ".")
	last := name[strings.LastIndex(name, ".")+1:]
	if !strings.Contains(key, ".") && !strings.HasPrefix(last, hashed) && len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(key))
	parts := []string{s.name, shown(key), hashed + hex.EncodeToString(sum[:])}
	if parts[1] == "" {
		parts = []string{parts[0], parts[2]}
	}
	return strings.Join(parts, ".")
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// shown returns what of a key can be in a name.
func shown(key string) string {
	part := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(key), "-"), "-")
	return strings.Trim(part[:min(len(part), mostShown)], "-")
}

// texts are the annotations with bytes, in Base64 where they are not UTF-8.
var texts = []string{keyAnnotation, valueAnnotation, noteAnnotation}

// annotations returns those of a new write.
func annotations(key string, value, note []byte) map[string]string {
	a := map[string]string{versionAnnotation: rand.Text()}
	var encoded []string
	for i, b := range [][]byte{[]byte(key), value, note} {
		if name := texts[i]; utf8.Valid(b) {
			a[name] = string(b)
		} else {
			a[name] = base64.StdEncoding.EncodeToString(b)
			encoded = append(encoded, strings.TrimPrefix(name, domain))
		}
	}
	a[base64Annotation] = strings.Join(encoded, ",")
	return a
}

// content returns what annotations were given.
func content(a map[string]string) (key string, value, note []byte, err error) {
	var all [3][]byte
	for i, name := range texts {
		all[i] = []byte(a[name])
		if !strings.Contains(","+a[base64Annotation]+",", ","+strings.TrimPrefix(name, domain)+",") {
			continue
		}
		if all[i], err = base64.StdEncoding.DecodeString(a[name]); err != nil {
			return "", nil, nil, fmt.Errorf("the annotation %s is not Base64: %w", name, err)
		}
	}
	return string(all[0]), all[1], all[2], nil
}
