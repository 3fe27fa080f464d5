package troubles_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/text/troubles"
)

func TestATroubleIsSaidWhenItBeginsThenWithACountAtTimesThatDoubleAndWhenItIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		ts := troubles.New[string](log, "partitions")
		defer ts.Close()
		for range 35 {
			for _, p := range []string{"a", "b"} {
				ts.Add(log, slog.LevelWarn, p, "down", "the database is down", "of", p)
			}
			<-time.After(time.Second)
			synctest.Wait()
		}
		if what := ts.Of("a"); what != "the database is down" {
			t.Errorf("a has %q", what)
		}
		ts.Well("a")
		if ts.Of("a") != "" {
			t.Error("a has a trouble")
		}
		ts.Well("b")
		var got []string
		for line := range strings.Lines(out.String()) {
			_, said, _ := strings.Cut(line, "level=")
			got = append(got, strings.TrimSpace(said))
		}
		want := []string{
			`WARN msg="the database is down" of=a`,
			`WARN msg="the database is down" of=b times=20 for=10s partitions=2`,
			`WARN msg="the database is down" of=b times=60 for=30s partitions=2`,
			`INFO msg="over: the database is down" times=70 for=35s`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestWhoLeavesOrHasAnotherTroubleIsNotWaitedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		ts := troubles.New[string](log, "partitions")
		defer ts.Close()
		for _, p := range []string{"a", "b", "c", "d"} {
			ts.Add(log, slog.LevelWarn, p, "down", "down")
		}
		ts.Left("a")
		ts.Add(log, slog.LevelError, "b", "full", "full")
		ts.Well("c")
		if strings.Contains(out.String(), "over:") {
			t.Errorf("d is still in trouble: %s", out.String())
		}
		ts.Well("d")
		if n := strings.Count(out.String(), "over: down"); n != 1 {
			t.Errorf("that it is over is said %d times: %s", n, out.String())
		}
		if ts.Of("b") != "full" {
			t.Errorf("b has %q", ts.Of("b"))
		}
	})
}

func TestALineWithACountSaysHowManyItHasMetThoughAllAreWellByThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		ts := troubles.New[string](log, "partitions")
		defer ts.Close()
		for range 2 {
			for _, p := range []string{"a", "b"} {
				ts.Add(log, slog.LevelWarn, p, "down", "down")
			}
			ts.Well("a")
			ts.Well("b")
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if lines := out.String(); !strings.Contains(lines, "msg=down times=4 for=10s partitions=2") {
			t.Errorf("it says\n%s", lines)
		}
	})
}

func TestOnlySoManyTroublesOfAKindHaveLinesOfTheirOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		ts := troubles.New[string](log, "partitions")
		defer ts.Close()
		for i := range 1000 {
			ts.Add(log, slog.LevelWarn, "a", fmt.Sprint("bad ", i), "bad", "err", i)
		}
		<-time.After(15 * time.Second)
		synctest.Wait()
		if n := strings.Count(out.String(), "msg=bad"); n != 22 { // 20, the first of the others, and how many they are
			t.Errorf("%d lines:\n%s", n, out.String())
		}
		<-time.After(time.Hour)
		synctest.Wait()
		out.Reset()
		ts.Add(log, slog.LevelWarn, "a", "worse", "bad")
		if n := strings.Count(out.String(), "msg=bad"); n != 1 {
			t.Errorf("%d lines an hour later:\n%s", n, out.String())
		}
	})
}
