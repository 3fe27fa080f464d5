package sinktest

import (
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// brokenToys lack one guard each. caught names an idiom in a place that must fail.
var brokenToys = []struct{ lacks, place, caught string }{
	{"COMMIT is not sent", inEach, "COMMIT"},
	{"COMMIT is not sent", inEach, "ROLLBACK, and continues"},
	{"COMMIT is not sent", inBatches, "ROLLBACK, and continues"},
	{"COMMIT is not sent", inOnFailure, "COMMIT, and hides the error"},
	{"a refusal cannot be hidden", inEach, "COMMIT, and hides the error"},
	{"only the guilty partition halts", inEach, "COMMIT"},
	{"what is not ordinary goes alone", inEach, "SAVEPOINT and RELEASE"},
	{"what is not ordinary goes alone", inEach, "a setting that stays"},
	{"what is not ordinary may go alone", inEach, "SAVEPOINT and RELEASE"},
	{"the session is reset", inEach, "a setting that stays"},
	{"a call's transaction ends with it", inEach, "a handle is used after the return"},
	{"a call's transaction ends with it", inEach, "writes after it has returned"},
	{"a savepoint that is left is a failure", inEach, "nested: left open"},
	{"an end that is not sent is a failure", inEach, "nested: Rollback under a context that has ended"},
	{"Rollback undoes", inEach, "handle: deferred Rollback without Commit, and nil"},
}

// ofToy are idioms in the words of the toy.
var ofToy = []Idiom{
	{Name: "a setting that stays", Want: Alone, Do: Sends("SET elsewhere")},
}

// understood are the idioms in which the toy understands every word.
func understood(place string) []Idiom {
	m := toyMode("")
	m.Own = ofToy
	var all []Idiom
	for _, i := range m.idiomsIn(place) {
		for _, word := range []string{"a duplicate", "no SQL", "not there", "argument", "connection", "undone by", "a comment", "an insert and", "rollback; begin"} {
			if strings.Contains(i.Name, word) {
				i.Do = nil
			}
		}
		if i.Do != nil {
			all = append(all, i)
		}
	}
	return all
}

func TestASoundSinkPassesTheIdioms(t *testing.T) {
	for _, place := range []string{inEach, inBatches, inOnFailure} {
		for _, i := range understood(place) {
			if wrong := playOnToy(t, "", place, i); wrong != "" {
				t.Errorf("%s %s: %s", i.Name, place, wrong)
			}
		}
	}
}

func TestEveryBrokenSinkIsCaughtByAnIdiom(t *testing.T) {
	for _, b := range brokenToys {
		t.Run(b.lacks+"/"+b.caught+b.place, func(t *testing.T) {
			found := false
			for _, i := range understood(b.place) {
				if i.Name != b.caught {
					continue
				}
				found = true
				caught := false
				for n := 0; !caught && n < 100; n++ { // what a goroutine does after the return may come too late to be seen
					caught = playOnToy(t, b.lacks, b.place, i) != ""
				}
				if !caught {
					t.Error("not caught")
				}
			}
			if !found {
				t.Error("there is no such idiom")
			}
		})
	}
}

// playOnToy returns what the suite has against a toy that lacks a guard.
func playOnToy(t *testing.T, lacks, place string, i Idiom) (wrong string) {
	bubble.Test(t, func(t *testing.T) {
		m := toyMode(lacks)
		if failed, said := verdict.Of(t, func(t testing.TB) { playIn(t, &m, &i, place) }); failed {
			wrong = "it failed: " + said
		}
	})
	return wrong
}
