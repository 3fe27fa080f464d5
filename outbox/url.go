package outbox

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/internal/text/secret"
)

// This file decides which URLs an entry may have, and which parts of a URL or a header may be seen
// in logs and errors. entry.go calls the checks; send.go hides the rest in its errors.

// receiverOf returns what texts may show of a URL.
func receiverOf(text string) string {
	return cmp.Or(secret.Receiver(text), "a URL that cannot be read")
}

// checkURL returns an error if no request can be sent to the URL. Its errors contain no secrets.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || !cleanText(text) {
		return fmt.Errorf("the URL, of %d bytes, cannot be read; want an absolute one, http or https, of at most %d bytes", len(text), maxURL)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("the URL is not one of a host; want an absolute one, http or https")
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
		return fmt.Errorf("the URL to %s names a port that there is not", receiverOf(text))
	}
	if !visible(u.RequestURI()) {
		return fmt.Errorf("the query of the URL to %s holds a space, or what is not ASCII; encode it with net/url", receiverOf(text))
	}
	return nil
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}

// arrives reports whether net/http can write e's request, without the body, and reads the same
// request back.
func arrives(e Entry) bool {
	sent, err := http.NewRequest(e.Method, e.URL, nil)
	if err != nil {
		return false
	}
	if e.Header != nil {
		sent.Header = e.Header
	}
	var wire bytes.Buffer
	if err := sent.Write(&wire); err != nil {
		return false
	}
	got, err := http.ReadRequest(bufio.NewReader(&wire))
	return err == nil && got.Method == e.Method && got.Host != "" && got.RequestURI == sent.URL.RequestURI()
}

// withoutSecrets returns err with a text that shows only the scheme and host of the URL. It removes
// each *url.Error, which has the whole URL.
func withoutSecrets(err error, of string) error {
	for whole := (*url.Error)(nil); errors.As(err, &whole); {
		err = whole.Err
	}
	return &quietError{err: err, text: hide(err.Error(), of)}
}

type quietError struct {
	err  error
	text string
}

func (e *quietError) Error() string { return e.text }
func (e *quietError) Unwrap() error { return e.err }

// hide replaces the parts of the URL that may be secret in text.
func hide(text, of string) string {
	u, err := url.Parse(of)
	if err != nil {
		return strings.ReplaceAll(text, of, "…")
	}
	secrets := []string{u.String(), u.Redacted(), u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery, u.EscapedFragment(), u.User.String()}
	parts := append(strings.FieldsFunc(u.RequestURI(), func(c rune) bool { return strings.ContainsRune("/?&=;", c) }), u.User.Username())
	for _, values := range u.Query() {
		parts = append(parts, values...)
	}
	password, _ := u.User.Password()
	secrets = append(secrets, password)
	for _, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain // any escapes of it are found
		}
		if len(part) >= 6 { // shorter parts are words, such as v1 or id
			secrets = append(secrets, part)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < 2 }) // "/" is not secret
	return secret.Spellings(append(secrets, of)...).ReplaceAllStringFunc(text, func(found string) string {
		if found == of {
			return receiverOf(of)
		}
		return "…"
	})
}

// hideHeader replaces the values of an entry's header in a receiver's text, and their words: a receiver
// may repeat a token.
func hideHeader(text string, h http.Header) string {
	var secrets []string
	for _, values := range h {
		for _, v := range values {
			for _, s := range append([]string{v}, strings.Fields(v)...) {
				if len(s) >= 6 { // shorter ones are words, such as Basic or gzip
					secrets = append(secrets, s)
				}
			}
		}
	}
	if secrets == nil {
		return text
	}
	return secret.Spellings(secrets...).ReplaceAllString(text, "…")
}
