package statusz_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/statusz"
)

// inline is what the policy forbids, which would be shown and not work.
var inline = regexp.MustCompile(`(?i)<script(?: [^>]*)?>[^<]|<style|\sstyle\s*=|\son[a-z]+\s*=\s*"|javascript:`)

func TestNoPageHasScriptOrStyleOfItsOwnAndAllHaveAPolicy(t *testing.T) {
	r := newRig(t)
	r.holds(orders(0))
	r.halts(orders(0), consumer.ReasonSink, errors.New("why"))
	h := r.page(annaMay)
	for _, path := range []string{
		"", "events", "partition?group=billing&topic=orders&number=0", "partition?group=billing&topic=no&number=0",
		"act?about=partition&group=billing&topic=orders&number=0&kind=pause&reason=why",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // of the stream
		r := httptest.NewRequest(http.MethodGet, "/status/"+path, nil).WithContext(ctx)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		cancel()
		if found := inline.FindString(w.Body.String()); found != "" {
			t.Errorf("/%s has %q", path, found)
		}
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"} {
			if !strings.Contains(w.Header().Get("Content-Security-Policy"), want) {
				t.Errorf("/%s: the policy does not have %s", path, want)
			}
		}
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("/%s: %v", path, w.Header())
		}
	}
	for path, want := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status/"+path, nil))
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != want {
			t.Errorf("/%s: %d, %s", path, w.Code, got)
		}
	}
}

func TestHostileTextsAreEscapedMadeVisibleAndCut(t *testing.T) {
	const markup = `"><script>alert(1)</script><img src=x onerror=alert(2)>'`
	hostile := markup + "\u202egnp.exe\u2028\x00\xff" + strings.Repeat("ä", 10_000)
	p := epoch.Partition{Group: "g" + hostile, Topic: "t" + hostile, Number: 3}
	r := newRig(t)
	r.stats.Observe(consumer.Joined{})
	r.stats.Observe(consumer.Granted{Partition: p})
	f := r.claims(p, "o"+hostile)
	r.stats.Observe(consumer.Claimed{Fence: f, Seen: epoch.Fence{Epoch: 1, Owner: hostile}})
	r.halts(p, consumer.ReasonMessageFailed, errors.New(hostile))
	r.deadLetter(p, 4, errors.New(hostile))
	h := r.page(func(o *statusz.Options) {
		annaMay(o)
		o.Title = hostile
		(&outboxOf{entry: operate.OutboxEntry{ID: 9, Partition: p, Method: hostile, URL: hostile, IdempotencyKey: hostile}}).in(o)
	})
	for _, path := range []string{"", "act?about=deadletter&id=1&kind=" + "discard", "act?about=outbox&id=9&kind=retry", "act?about=" + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"} {
		_, page := get(h, path)
		if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") {
			t.Errorf("/%s: not escaped", path)
		}
		for _, r := range []string{"\u202e", "\u2028", "\x00", "\xff"} {
			if strings.Contains(page, r) {
				t.Errorf("/%s has %q as it is", path, r)
			}
		}
	}
	_, page := get(h, "")
	wants(t, page, `\u202egnp.exe`, "characters)")
	// Names are not in commands to be pasted into a shell.
	if strings.Contains(page, "epochfence skip g") || !strings.Contains(page, "epochfence skip PARTITION") {
		t.Error("a hostile name is in a command")
	}
	link := regexp.MustCompile(`href="(partition\?[^"]*)"`).FindStringSubmatch(page)
	if link == nil {
		t.Fatal("there is no link to the partition")
	}
	status, detail := get(h, strings.NewReplacer("&amp;", "&").Replace(link[1]))
	if status != http.StatusOK {
		t.Errorf("the page of a hostile partition: %d", status)
	}
	if strings.Contains(detail, "<script>alert") {
		t.Error("the page of a partition is not escaped")
	}
	if n := len(page); n > 200_000 {
		t.Errorf("the page has %d bytes", n)
	}
}

func TestReadOnlyOffersNoFormAndTakesNoPost(t *testing.T) {
	for name, h := range map[string]func(*rig) http.Handler{
		"nobody may":       func(r *rig) http.Handler { return r.page(nil) },
		"this one may not": func(r *rig) http.Handler { return asNobody(r.page(annaMay)) },
	} {
		r := newRig(t)
		f := r.holds(orders(0))
		r.deadLetter(orders(0), 0, errors.New("why"))
		page := h(r)
		for _, path := range []string{"", "partition?group=billing&topic=orders&number=0"} {
			_, body := get(page, path)
			if strings.Contains(body, "<form") || strings.Contains(body, "act?") || strings.Contains(body, "<input") {
				t.Errorf("%s: /%s offers to act", name, path)
			}
		}
		for _, r := range []*http.Request{
			httptest.NewRequest(http.MethodGet, "/status/act?about=partition&group=billing&topic=orders&number=0&kind=pause&reason=why", nil),
			post("act", form(f, operate.ActPause)),
		} {
			if answer := request(page, r); answer.StatusCode != http.StatusNotFound && answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s act: %d", name, r.Method, answer.StatusCode)
			}
		}
		now, err := r.op.Partition(t.Context(), orders(0))
		if err != nil || now.Pause.Mode != epoch.Running {
			t.Errorf("%s: %+v, %v", name, now, err)
		}
	}
}

func asNobody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Who", "nobody")
		h.ServeHTTP(w, r)
	})
}
