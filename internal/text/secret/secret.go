// Package secret takes passwords out of texts, by their value. A URL whose password cannot be found
// is refused.
package secret

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Receiver returns the scheme and host of a URL, or an empty string if it cannot be read. The rest
// may be secret: a password, a token in the query, the path of a webhook.
func Receiver(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// Error returns err without the passwords of these URLs.
func Error(err error, urls ...string) error {
	if err == nil {
		return nil
	}
	text := Text(err.Error(), urls...)
	if text == err.Error() {
		return err
	}
	return &quiet{text, err}
}

type quiet struct {
	text string
	err  error
}

func (e *quiet) Error() string { return e.text }
func (e *quiet) Unwrap() error { return e.err }

// ofURL matches the password of a URL within a text.
var ofURL = regexp.MustCompile(`(://[^:/?#\s]*):[^@/\s]*@`)

// Text returns text without the passwords of these URLs, and without what looks like that of another one.
func Text(text string, urls ...string) string {
	for _, at := range each(urls) {
		_, password, _ := strings.Cut(user(at), ":")
		if plain, err := url.PathUnescape(password); err == nil {
			password = plain
		}
		switch {
		case len(password) >= 4:
			text = Spellings(password).ReplaceAllString(text, "…")
		case password != "": // it may be part of any word
			text = regexp.MustCompile(":"+Spellings(password).String()+"@").ReplaceAllString(text, ":…@")
		}
	}
	return ofURL.ReplaceAllString(text, "$1:…@")
}

// Writer returns a writer to w that takes the passwords of these URLs out of each text.
func Writer(w io.Writer, urls ...string) io.Writer { return &writer{w, urls} }

type writer struct {
	io.Writer
	urls []string
}

func (w *writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, Text(string(text), w.urls...)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Spellings matches secrets in every spelling of percent escapes, and in quotes.
func Spellings(secrets ...string) *regexp.Regexp {
	longest := func(a, b string) int { return cmp.Compare(len(b), len(a)) }
	var all []string
	for _, s := range slices.SortedFunc(slices.Values(secrets), longest) {
		if strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 }) {
			all = append(all, regexp.QuoteMeta(s))
		}
		var b strings.Builder
		for _, c := range []byte(s) {
			escaped := fmt.Sprintf("%%(?i:%02x)", c)
			switch {
			case c == ' ':
				fmt.Fprintf(&b, `(?: |\+|%s)`, escaped)
			case c < 0x80:
				fmt.Fprintf(&b, `(?:\\?%s|%s)`, regexp.QuoteMeta(string(rune(c))), escaped)
			default: // a byte of a character, or the whole as an escape
				fmt.Fprintf(&b, `(?:%s|\\x%02x)`, escaped, c)
			}
		}
		all = append(all, b.String())
	}
	return regexp.MustCompile("(?:" + strings.Join(all, "|") + ")")
}

// each splits lists of URLs, as nats.Connect does.
func each(urls []string) (all []string) {
	for _, at := range urls {
		if scheme, _, _ := strings.Cut(at, "://"); scheme == "nats" || scheme == "tls" {
			all = append(all, strings.Split(at, ",")...)
		} else {
			all = append(all, at)
		}
	}
	return all
}

// split returns what a URL names a server by, and what follows.
func split(at string) (authority, beyond string) {
	_, rest, _ := strings.Cut(at, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		return rest[:end], rest[end:]
	}
	return rest, ""
}

// user returns USER:PASSWORD of a URL.
func user(at string) string {
	authority, _ := split(at)
	return authority[:max(0, strings.LastIndexByte(authority, '@'))]
}

// Check refuses URLs whose password seems to have a character that ends it, such as a slash: the rest of
// such a password is taken for a host or a path, which errors print. The error has nothing of the URL.
func Check(urls ...string) error {
	if slices.ContainsFunc(each(urls), cut) {
		return errors.New("the URL cannot be parsed: write the characters : / ? # @ % , of its user, password and path as %3A %2F %3F %23 %40 %25 %2C")
	}
	return nil
}

func cut(at string) bool {
	authority, beyond := split(at)
	named := user(at)
	hosts := strings.TrimPrefix(authority[len(named):], "@")
	path, query, _ := strings.Cut(beyond, "?")
	if strings.ContainsAny(path, "@#") || strings.Contains(query, "#") || !strings.Contains(at, "://") && strings.Contains(at, "@") ||
		named == "" && strings.Contains(authority, ":") && strings.Contains(beyond, "@") {
		return true
	}
	for parameter := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(parameter, "="); strings.Contains(name, "@") {
			return true
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, err := url.Parse("secret://" + named + "@" + host); err != nil {
			return true
		}
	}
	return false
}
