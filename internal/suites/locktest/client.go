package locktest

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
)

// Rig returns a rig that the test of a driver creates. url is the value of the variable [Env].
func Rig(t testing.TB, url string) castest.Rig {
	var rig int
	do := func(what string) answer {
		a, err := (&client{url: url, number: rig}).once(t.Context(), request{Do: what})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	has := do("rig")
	rig = has.Number
	r := castest.Rig{Strands: has.Strands, Open: func(testing.TB, func(string) string) cas.Store {
		opened := do("open")
		c := &client{url: url, number: opened.Number}
		if opened.Watches {
			return watched{c}
		}
		return c
	}}
	if has.BacksUp {
		r.Backup = func(testing.TB) func() {
			do("backup")
			return func() { do("restore") }
		}
	}
	return r
}

// client is a store that another process has open.
type client struct {
	url    string
	number int
}

// ask sends a request, once, and yields its answers.
func (c *client) ask(ctx context.Context, q request) iter.Seq2[answer, error] {
	return func(yield func(answer, error) bool) {
		q.Number = c.number
		var body bytes.Buffer
		err := gob.NewEncoder(&body).Encode(q)
		var r *http.Request
		if err == nil {
			r, err = http.NewRequestWithContext(ctx, http.MethodPost, c.url, &body)
		}
		var got *http.Response
		if err == nil {
			got, err = http.DefaultClient.Do(r)
		}
		if err != nil {
			yield(answer{}, fmt.Errorf("locktest: %s %q: %w", q.Do, q.Key, err))
			return
		}
		defer func() { _ = got.Body.Close() }()
		for from := gob.NewDecoder(got.Body); ; {
			var a answer
			err := from.Decode(&a)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				err = fmt.Errorf("locktest: %s %q: the answer: %w", q.Do, q.Key, err)
			case a.Is > 0:
				err = fmt.Errorf("%w: %s", sentinels[a.Is-1], a.Error)
			case a.Error != "":
				err = errors.New(a.Error)
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// once returns the only answer.
func (c *client) once(ctx context.Context, q request) (answer, error) {
	for a, err := range c.ask(ctx, q) {
		return a, err
	}
	return answer{}, fmt.Errorf("locktest: %s %q: no answer", q.Do, q.Key)
}

func (c *client) Facts(ctx context.Context) (cas.Facts, error) {
	a, err := c.once(ctx, request{Do: "facts"})
	return a.Facts, err
}

func (c *client) Get(ctx context.Context, key string) (cas.Item, error) {
	a, err := c.once(ctx, request{Do: "get", Key: key})
	return a.Item, err
}

func (c *client) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	a, err := c.once(ctx, request{Do: "swap", Key: seen.Key, Seen: seen, Value: value, Note: note})
	return a.Item, err
}

func (c *client) Delete(ctx context.Context, seen cas.Item) error {
	_, err := c.once(ctx, request{Do: "delete", Key: seen.Key, Seen: seen})
	return err
}

func (c *client) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return c.items(ctx, request{Do: "list", Key: prefix})
}

func (c *client) items(ctx context.Context, q request) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for a, err := range c.ask(ctx, q) {
			if !yield(a.Item, err) {
				return
			}
		}
	}
}

// watched is a client of a store that reports changes.
type watched struct{ *client }

func (w watched) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return w.items(ctx, request{Do: "watch", Key: prefix})
}
