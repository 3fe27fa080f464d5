// Package browser tests the status page in headless Chromium: chromium, chromium-browser, google-chrome or the path in
// EPOCHFENCE_CHROMIUM. It takes pictures of it too. It is a separate module, so that the status page does not depend on the
// browser's driver.
package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// tab is a page of a browser that complains about nothing.
type tab struct {
	*testing.T
	ctx context.Context
}

func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := context.WithTimeout(browse(t), 2*time.Minute)
	t.Cleanup(cancel)
	b := &tab{t, ctx}
	b.do(chromedp.Func(look{width: 1280}.as))
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

func eval[V any](b *tab, expression string) V {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[V](expression))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true.
func (b *tab) until(expression string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression)); err != nil {
		b.Fatalf("%s: %v\n%s", expression, err, eval[string](b, "document.body.innerText"))
	}
}

// follow clicks what leads to another page, and waits for that.
func (b *tab) follow(selector string) {
	b.Helper()
	if _, err := chromedp.RunResponse(b.ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
		b.Fatalf("%s: %v", selector, err)
	}
}

// complaints collects what the browser says that a policy or a script has made of
// the pages from now on.
func (b *tab) complaints() func() []string {
	b.Helper()
	ctx, stop := context.WithCancel(b.ctx)
	var said []string
	done := make(chan struct{}, 2)
	logged, thrown := chromedp.Events(ctx, log.EntryAdded), chromedp.Events(ctx, cdpruntime.ExceptionThrown)
	go func() {
		defer func() { done <- struct{}{} }()
		for e, err := range logged {
			if err != nil {
				return
			}
			if e.Entry.Level == log.EntryLevelError && !strings.HasSuffix(e.Entry.URL, "/favicon.ico") {
				said = append(said, e.Entry.Text)
			}
		}
	}()
	var exceptions []string
	go func() {
		defer func() { done <- struct{}{} }()
		for e, err := range thrown {
			if err != nil {
				return
			}
			exceptions = append(exceptions, e.ExceptionDetails.Text)
		}
	}()
	return func() []string {
		stop()
		<-done
		<-done
		return append(said, exceptions...)
	}
}

func TestALiveTakeoverAppears(t *testing.T) {
	b := newTab(t)
	said := b.complaints()
	c := open(t, setting{partitions: 4})
	c.await(t, "both processes have partitions", func() bool {
		owners := map[string]bool{}
		for _, f := range c.sink.Fences() {
			owners[f.Owner] = true
		}
		return owners["worker-1"] && owners["worker-2"]
	})
	b.do(chromedp.Navigate(c.url()))
	b.until(`document.getElementById("connection").textContent === "Up to date."`)
	b.until(`[...document.querySelectorAll("[data-label=Owner]")].some((e) => e.innerText === "worker-1")`)
	eval[bool](b, `window.same = true`)
	c.takeover(t)
	b.until(`document.getElementById("decisions").closest("section").innerText.includes("from worker-1")`)
	b.until(`document.getElementById("moments").closest("section").innerText.includes("from worker-1, which had it under epoch")`)
	b.until(`[...document.querySelectorAll("[data-label=Owner]")].every((e) => e.innerText === "worker-2 (this process)")`)
	if !eval[bool](b, `window.same === true`) {
		t.Error("the page was loaded anew")
	}
	c.first.Thaw()
	if complaints := said(); len(complaints) > 0 {
		t.Errorf("the browser complains: %q", complaints)
	}
}

func TestUpdatesLeaveFocusAlone(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{partitions: 3})
	b.do(chromedp.Navigate(c.url()))
	b.until(`document.getElementById("connection").textContent === "Up to date."`)
	eval[bool](b, `window.link = document.querySelectorAll("table a")[1], window.link.focus(), window.read = document.querySelector(".read").innerText, true`)
	b.until(`document.querySelector(".read").innerText !== window.read`)
	if !eval[bool](b, `document.activeElement === window.link && window.link.isConnected`) {
		t.Error("an update has taken the focus away")
	}
}

func TestUpdatesCanBePausedAndALostServerIsSaid(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{partitions: 3})
	b.do(chromedp.Navigate(c.url()))
	b.until(`document.getElementById("connection").textContent === "Up to date."`)
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	b.until(`document.getElementById("connection").textContent === "Updates are paused."`)
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	b.until(`document.getElementById("connection").textContent === "Up to date."`)
	c.page.CloseClientConnections()
	c.page.Listener.Close()
	b.until(`document.getElementById("connection").textContent.startsWith("Not up to date: no answer for ")`)
}

// hostile is what names and errors may be.
var hostile = `"><script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">'` + "\u202egnp.exe" + strings.Repeat("ä", 10_000)

func TestHostileNamesAreEscaped(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{
		topic: "t" + hostile, group: "g" + hostile, owners: [2]string{"one" + hostile, "two" + hostile}, partitions: 2, title: "i" + hostile,
		fails: func(m consumer.Message) error {
			if m.Offset == 0 {
				return errors.New("e" + hostile)
			}
			return nil
		},
		poison: func(m consumer.Message) error {
			if m.Offset == 1 {
				return errors.New("p" + hostile)
			}
			return nil
		},
		mayAct: anna, outbox: true,
	})
	for n := range int32(2) {
		c.log.Append(n, "one", "two")
	}
	b.do(chromedp.Navigate(c.url()))
	b.until(`document.querySelector(".halt") !== null && document.getElementById("connection").textContent === "Up to date."`)
	c.takeover(t)
	b.until(`document.getElementById("decisions").closest("section").innerText.includes("takeover")`)
	harmless := func(where string) {
		t.Helper()
		if eval[bool](b, `"pwned" in window`) {
			t.Errorf("%s: a name was run", where)
		}
		if n := eval[int](b, `document.querySelectorAll("img, main script, header script").length`); n != 0 {
			t.Errorf("%s: %d elements come from names", where, n)
		}
		if text := eval[string](b, `document.body.innerText`); strings.Contains(text, "\u202e") || !strings.Contains(text, `\u202e`) {
			t.Errorf("%s: what turns the text around is there, or is not shown", where)
		}
	}
	harmless("the overview")
	for _, width := range []int64{1280, 390, 320} {
		b.do(chromedp.Func(look{width: width}.as))
		if over := eval[int](b, `document.documentElement.scrollWidth - window.innerWidth`); over > 0 {
			t.Errorf("at %d pixels a name makes the page %d too wide", width, over)
		}
	}
	b.follow(`tbody a[href^="partition?"]`)
	b.until(`document.getElementById("fence") !== null`)
	harmless("a partition")
	b.do(chromedp.Click(chromedp.CSS(`[value=pause]`)), chromedp.SendKeys(chromedp.CSS(`[name=reason]`), "why"))
	b.follow("form button")
	b.until(`document.querySelector("form[method=post]") !== null`)
	harmless("before an act")
	b.follow("button.do")
	b.until(`document.body.innerText.includes("Done: pause.")`)
	harmless("after an act")
	paused := 0
	for _, f := range c.sink.Fences() {
		if f.Pause.Mode == epoch.Paused {
			paused++
		}
	}
	if paused != 1 {
		t.Errorf("%d partitions are paused", paused)
	}
}

func TestReadOnlyOffersNoForm(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{partitions: 2})
	for _, path := range []string{"", "partition?group=billing&topic=orders&number=0"} {
		b.do(chromedp.Navigate(c.url() + path))
		if n := eval[int](b, `document.querySelectorAll("form, input, select, textarea, a[href*=act], button:not(#pause)").length`); n != 0 {
			t.Errorf("/%s: %d elements to act by", path, n)
		}
	}
}

func TestAFormOfAnotherSiteDoesNothing(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{partitions: 1, mayAct: anna})
	f := c.sink.Fences()[epoch.Partition{Group: "billing", Topic: "orders"}]
	form := ""
	for name, value := range map[string]string{
		"about": "partition", "group": "billing", "topic": "orders", "number": "0", "kind": "pause", "reason": "why", "claim": epoch.NewClaimID().String(),
		"seen-epoch": fmt.Sprint(f.Epoch), "seen-claim": f.Claim.String(), "seen-next": fmt.Sprint(f.Next),
	} {
		form += fmt.Sprintf(`<input name="%s" value="%s">`, name, value)
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method="post" action="%sact">%s<button>win</button></form>`, c.url(), form)
	}))
	t.Cleanup(evil.Close)
	b.do(chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)))
	answer, err := chromedp.RunResponse(b.ctx, chromedp.Click(chromedp.CSS("button")))
	if err != nil {
		t.Fatal(err)
	}
	if answer.Status != http.StatusForbidden {
		t.Errorf("answered %d", answer.Status)
	}
	for _, f := range c.sink.Fences() {
		if f.Pause.Mode != epoch.Running {
			t.Errorf("%+v", f)
		}
	}
}

func TestThePageWorksWithoutScriptAndReadsItselfAgain(t *testing.T) {
	b := newTab(t)
	c := open(t, setting{partitions: 3})
	b.do(chromedp.Func(look{width: 1280, noScript: true}.as), chromedp.Navigate(c.url()))
	if n := eval[int](b, `document.querySelectorAll("tbody tr.here").length`); n == 0 {
		t.Error("no partition of this process")
	}
	if !eval[bool](b, `document.getElementById("updates").hidden`) {
		t.Error("a button that does nothing is shown")
	}
	read := eval[string](b, `document.querySelector(".read").innerText`)
	loads := chromedp.Events(b.ctx, page.LoadEventFired)
	for _, err := range loads {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if again := eval[string](b, `document.querySelector(".read").innerText`); again == read {
		t.Error("it was not read again")
	}
}

// contrasts returns the texts whose contrast to what is behind them is below 4.5, which is
// what WCAG 2 wants.
const contrasts = `(() => {
	const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return {rgb: m.slice(0, 3), a: m.length > 3 ? m[3] : 1}; };
	const light = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
	const low = [];
	for (const e of document.body.querySelectorAll("*")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim())) continue;
		const [a, b] = [light(parse(getComputedStyle(e).color).rgb), light(behind(e))].sort((x, y) => y - x);
		if ((a + .05) / (b + .05) < 4.5) low.push(e.textContent.slice(0, 40) + " " + ((a + .05) / (b + .05)).toFixed(2));
	}
	return low;
})()`

func TestPagesAreAccessible(t *testing.T) {
	b := newTab(t)
	c := busy(t)
	for _, path := range []string{
		"", "partition?group=billing&topic=orders&number=0", "partition?group=billing&topic=orders&number=77",
		"act?about=partition&group=billing&topic=orders&number=0&kind=pause&reason=why", "act?about=deadletter&id=1&kind=replay",
	} {
		for _, l := range []look{{width: 1280}, {width: 1280, dark: true}, {width: 390}, {width: 390, dark: true}} {
			b.do(chromedp.Func(l.as), chromedp.Navigate(c.url()+path))
			if low := eval[[]string](b, contrasts); len(low) > 0 {
				t.Errorf("/%s %+v: too little contrast: %q", path, l, low)
			}
			if over := eval[int](b, `document.documentElement.scrollWidth - window.innerWidth`); over > 0 {
				t.Errorf("/%s %+v: %d pixels too wide", path, l, over)
			}
		}
		for what, none := range map[string]string{
			"not one h1":                       `document.querySelectorAll("h1").length === 1 ? 0 : 1`,
			"headings that skip a level":       `[...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1]).filter((n, i, all) => i > 0 && n > all[i - 1] + 1).length`,
			"fields without a label":           `[...document.querySelectorAll("input:not([type=hidden])")].filter((e) => !e.labels.length).length`,
			"tables without headers":           `[...document.querySelectorAll("table")].filter((e) => !e.querySelector("th[scope=col]")).length`,
			"sections without a name":          `[...document.querySelectorAll("section")].filter((e) => !(e.ariaLabel || document.getElementById(e.getAttribute("aria-labelledby")))).length`,
			"links and buttons without a text": `[...document.querySelectorAll("a, button:not([hidden] *)")].filter((e) => !e.textContent.trim()).length`,
			"no language":                      `document.documentElement.lang ? 0 : 1`,
		} {
			if n := eval[int](b, none); n != 0 {
				t.Errorf("/%s: %s: %d", path, what, n)
			}
		}
	}
}
