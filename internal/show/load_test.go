package show

import (
	"testing"
	"time"
)

func TestALoadOfAnyLengthHasFreezesAndKillsInTurn(t *testing.T) {
	for duration, want := range map[time.Duration]int{0: 2, time.Second: 2, 24 * time.Second: 3, 2 * time.Minute: 15} {
		l := Load{Duration: duration, Every: 8 * time.Second, Freezes: []Point{InHand, AfterWrites}, Kills: []Point{AfterCommit}}
		got := l.incidents()
		if len(got) != want {
			t.Errorf("%v: %d incidents, want %d", duration, len(got), want)
		}
		for i, in := range got {
			want := []Incident{{At: InHand}, {Kill: true, At: AfterCommit}, {At: AfterWrites}, {Kill: true, At: AfterCommit}}[i%4]
			if in != want {
				t.Errorf("%v: incident %d is %+v, want %+v", duration, i, in, want)
			}
		}
	}
}

func TestThePaceSpreadsTheLoadAndHoldsBackTwoSharesForEachIncident(t *testing.T) {
	p := newPace(1200, 10*time.Second, 1) // 200 twice for an incident
	at := func(past time.Duration, want int) {
		t.Helper()
		if got := p.due(past); got != want {
			t.Errorf("%d due after %v, want %d", got, past, want)
		}
	}
	at(0, 0)
	at(5*time.Second, 600)
	at(time.Minute, 800)
	p.held.Add(-1)
	at(time.Minute, 1000)
	at(5*time.Second, 600)
	p.held.Add(-1)
	at(time.Minute, 1200)
}
