//go:build unix

package show

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/ops/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestAWindowShowsTheGroupAndItsWorkersAndAFrozenOneDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	c := NewCrew(func(int) any { return puppetConfig{Dir: dir} })
	t.Cleanup(func() { c.Stop(0) })
	var out bytes.Buffer
	w, err := Settings{HTTP: "127.0.0.1:0"}.OpenWindow(NewBoard(&out), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	url := regexp.MustCompile(`http://\S+/`).FindString(out.String())
	if status, body := get(t, url); status != http.StatusServiceUnavailable {
		t.Errorf("before the show: %d, %s", status, body)
	}
	for range 2 {
		if _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Show(statusz.Options{Title: "the title", Operator: memsink.New().Operator()}); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, url); status != http.StatusOK || !strings.Contains(body, "the title") {
		t.Errorf("the group: %d, %s", status, body)
	}
	if err := c.await(t.Context(), startLimit, func() bool { return c.workers[1].address != "" && c.workers[2].address != "" }); err != nil {
		t.Fatal(err)
	}
	becomes(t, url+"workers/2/", http.StatusOK, func(body string) bool { return strings.Contains(body, "this worker") })
	becomes(t, url+"workers/2/readyz", http.StatusServiceUnavailable, func(body string) bool { return strings.Contains(body, "not a member") })
	if status, _ := get(t, url+"workers/9/"); status != http.StatusNotFound {
		t.Errorf("worker 9: %d", status)
	}
	const one, other = `epochfence_member{worker="1"}`, `epochfence_member{worker="2"}`
	becomes(t, url+"metrics", http.StatusOK, func(body string) bool { return strings.Contains(body, one) && strings.Contains(body, other) })

	c.mu.Lock()
	two := c.workers[2]
	c.mu.Unlock()
	if err := freeze(two.cmd.Process); err != nil {
		t.Fatal(err)
	}
	c.frozen(two, true)
	// A signal stops a process when one of its threads gets a processor: another may answer until then.
	becomes(t, url+"workers/2/", http.StatusGatewayTimeout, func(body string) bool { return strings.Contains(body, "frozen") })
	becomes(t, url+"metrics", http.StatusOK, func(body string) bool { return strings.Contains(body, one) && !strings.Contains(body, other) })
	for owner, want := range map[string]statusz.Owner{
		"group-worker 2/ab": {Name: "worker 2", Note: "frozen"},
		"worker 1":          {Name: "worker 1", URL: "workers/1/"},
		"worker 7":          {Name: "worker 7", Note: "killed"},
		"somebody else":     {},
	} {
		if got := w.owner(owner); got != want {
			t.Errorf("%s: %+v, want %+v", owner, got, want)
		}
	}
}

func TestTheMetricsOfSeveralWorkersAreOneExposition(t *testing.T) {
	text := func(n int) []byte {
		return fmt.Appendf(nil, "# HELP a What\n# TYPE a counter\na{x=\"1 {\"} %d\n# HELP b Which\n# TYPE b gauge\nb %d\n", n, n)
	}
	want := `# HELP a What
# TYPE a counter
a{worker="1",x="1 {"} 10
a{worker="2",x="1 {"} 20
# HELP b Which
# TYPE b gauge
b{worker="1"} 10
b{worker="2"} 20
`
	if got := string(joined(map[int][]byte{2: text(20), 1: text(10)})); got != want {
		t.Errorf("joined:\n%s\nwant:\n%s", got, want)
	}
}

// becomes asks until the answer is as wanted: a worker that the machine does not let answer
// within a second is taken for a frozen one.
func becomes(t *testing.T, url string, status int, holds func(body string) bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); ; {
		is, body := get(t, url)
		if is == status && holds(body) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%s: %d, %s", url, is, body)
		}
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}
