package sinktest

import (
	"slices"
	"testing"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

const (
	inEach       = ""
	inBatches    = "Batches"
	inOnFailure  = "OnFailure"
	inReplay     = "a replay"
	inBackground = "Background"
)

func (m *mode) idioms() []Idiom {
	all := slices.Clone(anybody)
	if m.Exec != nil {
		all = slices.Concat(all, statements, m.Speaks.idioms)
	}
	general := len(all)
	if m.Handle != nil {
		all = append(all, handles...)
	}
	if m.DB != nil {
		all = append(all, dbs...)
	}
	all = append(all, m.Own...)
	for n := range all[general:] {
		all[general+n].handle = true
	}
	return slices.DeleteFunc(all, func(i Idiom) bool {
		return i.Answers && m.Queued
	})
}

func (m *mode) chosen(place string) []Idiom {
	return slices.DeleteFunc(m.idiomsIn(place), func(i Idiom) bool {
		return !*allIdioms && (m.Plays == WireMatters && (place != inEach || !i.Wire) || m.Plays == HandlesAlone && !i.handle)
	})
}

func (m *mode) idiomsIn(place string) []Idiom {
	if place == inEach {
		return m.idioms()
	}
	return slices.DeleteFunc(m.idioms(), func(i Idiom) bool { return !i.Places })
}

// playMode runs the idioms of a mode in parallel, in the handler and in the other places.
func playMode(t *testing.T, m mode, table *table) {
	for _, i := range m.chosen(inEach) {
		playCell(t, m, i, inEach, table)
	}
	for _, place := range []string{inBatches, inOnFailure} {
		t.Run(place, func(t *testing.T) {
			for _, i := range m.chosen(place) {
				playCell(t, m, i, place, table)
			}
		})
	}
	if is := m.chosen(inReplay); len(is) > 0 {
		t.Run(inReplay, func(t *testing.T) { m.plays(t, func(t *testing.T) { playReplays(t, &m, is, table) }) })
		t.Run(inBackground, func(t *testing.T) { m.plays(t, func(t *testing.T) { playBackground(t, &m, is, table) }) })
	}
}

func playCell(t *testing.T, m mode, i Idiom, place string, table *table) {
	t.Run(i.Name, func(t *testing.T) {
		m.plays(t, func(t *testing.T) { table.note(&m, place, i.Name, playIn(t, &m, &i, place)) })
	})
}

// plays runs play in parallel with others, or in a bubble.
func (m *mode) plays(t *testing.T, play func(t *testing.T)) {
	if m.Virtual {
		bubble.Test(t, play)
		return
	}
	t.Parallel()
	play(t)
}
