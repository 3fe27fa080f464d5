package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A row of peers.json, which `make peers` writes.
type peer struct {
	ID, Peer, Version, Form, Promise, Ran string
	Consumer                              bool
	Kinds                                 []struct{ Of, Doubled, Lost, Waited int }
}

func TestThePageOfPeersHasTheCountsOfTheTrials(t *testing.T) {
	text, err := os.ReadFile("peers.json")
	if err != nil {
		t.Fatal(err)
	}
	var peers []peer
	if err := json.Unmarshal(text, &peers); err != nil {
		t.Fatal(err)
	}
	const header = "\n| %s | in the form | promises | frozen in its work | thawed while the other works | frozen before `COMMIT` | ran |\n|---|---|---|---|---|---|---|\n"
	consumers, schedulers := fmt.Sprintf(header, "consumer"), fmt.Sprintf(header, "scheduler or lock")
	for _, p := range peers {
		if len(p.Kinds) != 3 {
			t.Fatalf("%s: %+v", p.ID, p.Kinds)
		}
		if p.Version == "this tree" {
			p.Version = ""
		}
		line := fmt.Sprintf("| %s | %s | %s |", strings.TrimSpace(p.Peer+" "+p.Version), p.Form, p.Promise)
		for _, k := range p.Kinds {
			cell := fmt.Sprintf(" %d of %d", k.Doubled, k.Of)
			if k.Lost > 0 {
				cell += fmt.Sprintf(", %d lost", k.Lost)
			}
			if k.Waited > 0 {
				cell += fmt.Sprintf(", %d held up", k.Waited)
			}
			if k.Of == 0 {
				cell = " not tried"
			}
			line += cell + " |"
			if strings.Contains(p.Peer, "**") && (k.Doubled > 0 || k.Lost > 0 || k.Of == 0) {
				t.Errorf("%s: %+v", p.ID, k)
			}
		}
		line += " " + p.Ran + " |\n"
		if p.Consumer {
			consumers += line
		} else {
			schedulers += line
		}
	}
	isOnPage(t, "move-over.md", "peers", consumers+schedulers+"\n", "make peers")
}
