package main

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

// This file reads the URL of --store, which may name several hosts, and refuses parameters that
// nobody took.

// storeURL is what --store says: SCHEME://[USER[:PASSWORD]@]HOST[,HOST…][/PATH][?PARAMETER=…].
// net/url takes one host only.
type storeURL struct {
	text   string
	scheme string
	user   *url.Userinfo // or nil
	hosts  []string
	path   string // without the first slash
	query  url.Values
}

func parseURL(text string) (*storeURL, error) {
	u := &storeURL{text: text}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("want a URL, which begins with one of " + schemes())
	}
	u.scheme = scheme
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		parsed, err := url.Parse("store://" + authority[:at] + "@host")
		if err != nil {
			return nil, errors.New("the user or the password is not escaped as in a URL")
		}
		u.user, authority = parsed.User, authority[at+1:]
	}
	u.hosts = strings.Split(authority, ",")
	if slices.Contains(u.hosts, "") {
		return nil, errors.New("a host is missing")
	}
	var err error
	if u.path, err = url.PathUnescape(path); err != nil {
		return nil, err
	}
	if u.query, err = url.ParseQuery(query); err != nil {
		return nil, err
	}
	return u, nil
}

// take returns a parameter and removes it.
func (u *storeURL) take(name string) string {
	value := u.query.Get(name)
	u.query.Del(name)
	return value
}

func (u *storeURL) unused() error {
	for name := range u.query {
		return usage("--store: %s:// has no parameter %q", u.scheme, name)
	}
	return nil
}

// native returns the URL for a client that parses URLs itself, with the parameters that are left.
func (u *storeURL) native() string {
	text, _, _ := strings.Cut(u.text, "?")
	if query := u.query.Encode(); query != "" {
		text += "?" + query
	}
	u.query = nil
	return text
}

func (u *storeURL) password() string {
	word, _ := u.user.Password()
	return word
}
