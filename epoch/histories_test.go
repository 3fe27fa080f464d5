package epoch_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestHistories plays testdata/*.txt: a paragraph of intent, then commands, each
// followed by ---- and what came of it.
//
//	seed PARTITION at OFFSET [earliest OFFSET] [and …]
//	WHO reads PARTITION
//	WHO swaps PARTITION generation N [adopting OFFSET] [log LOG] [source SOURCE]     into what it has read
//	WHO claims PARTITION generation N [adopting OFFSET] [log LOG] [source SOURCE]    reads, then swaps
//	WHO applies PARTITION from OFFSET to OFFSET [mark N] [by CLAIM] [and …]
//	set PARTITION next OFFSET                                  by hand
//	backup
//	restore
//	fence PARTITION
//	effects PARTITION
//
// A's claims are called A1, A2 and so on. Effects are written as offset@epoch.
// Messages are applied under the newest claim of whoever applies, unless told.
func TestHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(want), "# ") {
				t.Error("a history begins with a paragraph of intent")
			}
			got := newHistory(t).play(string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the history goes differently (-update rewrites it):\n%s", firstDifference(got, string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d:\n got: %s\nwant: %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// history is a sink in the abstract, the effects beside it, and what each
// process knows.
type history struct {
	t       *testing.T
	fences  epoch.Fences
	effects map[epoch.Partition][]string
	backup  *history

	seen   map[string]epoch.Fence // by process and partition
	claims map[string]epoch.Fence // the fence that a claim returned, by the claim's name
	newest map[string]string      // the name of the newest claim, by process and partition
	count  map[string]int         // of claims, by process
	names  []string               // pairs of claim id and name
}

func newHistory(t *testing.T) *history {
	return &history{
		t: t, fences: epoch.Fences{}, effects: map[epoch.Partition][]string{},
		seen: map[string]epoch.Fence{}, claims: map[string]epoch.Fence{},
		newest: map[string]string{}, count: map[string]int{},
		names: []string{epoch.ClaimID{}.String(), "nobody"},
	}
}

// play returns text with the results that the commands in it have now.
func (h *history) play(text string) string {
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		out.WriteString(line)
		if i < len(lines)-1 {
			out.WriteByte('\n')
		}
		if i+1 >= len(lines) || lines[i+1] != "----" {
			if line != "" && !strings.HasPrefix(line, "#") {
				h.t.Fatalf("line %d: %q is neither a remark nor a command", i+1, line)
			}
			continue
		}
		result := h.do(line)
		fmt.Fprintf(&out, "----\n%s\n", strings.NewReplacer(h.names...).Replace(result))
		for i++; i+1 < len(lines) && lines[i+1] != ""; i++ { // skip the old result
		}
	}
	return out.String()
}

func (h *history) do(command string) string {
	words := strings.Fields(command)
	switch {
	case words[0] == "seed":
		return h.seed(clauses(words[1:]))
	case words[0] == "set":
		return h.set(words[1:])
	case words[0] == "backup":
		h.backup = &history{fences: maps.Clone(h.fences), effects: maps.Clone(h.effects)}
		return "ok"
	case words[0] == "restore":
		h.fences, h.effects = maps.Clone(h.backup.fences), maps.Clone(h.backup.effects)
		return "ok"
	case words[0] == "fence":
		f, err := h.fences.Read(h.partition(words[1]))
		return answer(err, show(f))
	case words[0] == "effects":
		if es := h.effects[h.partition(words[1])]; len(es) > 0 {
			return strings.Join(es, " ")
		}
		return "none"
	case len(words) > 2 && words[1] == "reads":
		return h.reads(words[0], words[2])
	case len(words) > 2 && words[1] == "swaps":
		return h.swaps(words[0], words[2], h.options(words[3:]))
	case len(words) > 2 && words[1] == "claims":
		if said := h.reads(words[0], words[2]); strings.HasPrefix(said, "refused") {
			return said
		}
		return h.swaps(words[0], words[2], h.options(words[3:]))
	case len(words) > 2 && words[1] == "applies":
		return h.applies(words[0], clauses(words[2:]))
	}
	h.t.Fatalf("unknown command %q", command)
	return ""
}

// clauses splits what "and" joins.
func clauses(words []string) [][]string {
	all := [][]string{nil}
	for _, w := range words {
		if w == "and" {
			all = append(all, nil)
			continue
		}
		all[len(all)-1] = append(all[len(all)-1], w)
	}
	return all
}

// options reads names, each followed by its value.
func (h *history) options(words []string) map[string]string {
	o := map[string]string{}
	if len(words)%2 != 0 {
		h.t.Fatalf("odd number of words: %q", words)
	}
	for pair := range slices.Chunk(words, 2) {
		o[pair[0]] = pair[1]
	}
	return o
}

func (h *history) position(s string) epoch.Position {
	return epoch.Position{Offset: epoch.Offset(h.number(s)), Mark: epoch.NoMark}
}

func (h *history) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// partition reads topic/number, of the group "billing", or group/topic/number.
func (h *history) partition(s string) epoch.Partition {
	parts := strings.Split(s, "/")
	if len(parts) == 2 {
		parts = append([]string{"billing"}, parts...)
	}
	if len(parts) != 3 {
		h.t.Fatalf("%q is no partition", s)
	}
	return epoch.Partition{Group: parts[0], Topic: parts[1], Number: int32(h.number(parts[2]))}
}

func (h *history) origin(p epoch.Partition, o map[string]string) epoch.Origin {
	at := epoch.Origin{Partition: p, Log: "log-1", Source: "source-1"}
	if s, ok := o["log"]; ok {
		at.Log = s
	}
	if s, ok := o["source"]; ok {
		at.Source = s
	}
	return at
}

func answer(err error, otherwise string) string {
	if err != nil {
		return "refused: " + err.Error()
	}
	return otherwise
}

func show(f epoch.Fence) string {
	if f.Epoch == 0 {
		return fmt.Sprintf("not claimed, next %d", f.Next)
	}
	return fmt.Sprintf("epoch %d, claim %s, generation %d, owner %s, next %d", f.Epoch, f.Claim, f.Generation, f.Owner, f.Next)
}

func (h *history) seed(each [][]string) string {
	var starts []epoch.Start
	for _, c := range each {
		p, o := h.partition(c[0]), h.options(c[1:])
		s := epoch.Start{Origin: h.origin(p, o), Next: h.position(o["at"])}
		s.Earliest = s.Next
		if e, ok := o["earliest"]; ok {
			s.Earliest = h.position(e)
		}
		starts = append(starts, s)
	}
	return answer(h.fences.Seed(starts), "ok")
}

func (h *history) set(words []string) string {
	p := h.partition(words[0])
	f, err := h.fences.Read(p)
	if err == nil {
		f.Next = epoch.Offset(h.number(h.options(words[1:])["next"]))
		h.fences[p] = f
	}
	return answer(err, show(f))
}

func (h *history) reads(who, partition string) string {
	f, err := h.fences.Read(h.partition(partition))
	if err == nil {
		h.seen[who+" "+partition] = f
	}
	return answer(err, show(f))
}

func (h *history) swaps(who, partition string, o map[string]string) string {
	h.count[who]++
	name := who + strconv.Itoa(h.count[who])
	l := epoch.Lease{Origin: h.origin(h.partition(partition), o), Generation: h.number(o["generation"]), Owner: who}
	c := epoch.Claim{Lease: l}
	if at, ok := o["adopting"]; ok {
		p := h.position(at)
		c.Adopt = &p
	}
	binary.BigEndian.PutUint64(c.ID[8:], uint64(len(h.names)))
	h.names = append(h.names, c.ID.String(), name)
	f, err := h.fences.Claim(h.seen[who+" "+partition], c)
	if err == nil {
		h.claims[name] = f
		h.newest[who+" "+partition] = name
	}
	return answer(err, show(f))
}

func (h *history) applies(who string, each [][]string) string {
	var as []epoch.Advance
	var under []epoch.Epoch
	for _, c := range each {
		o := h.options(c[1:])
		by, ok := o["by"]
		if !ok {
			by = h.newest[who+" "+c[0]]
		}
		a := epoch.Advance{
			Partition: h.partition(c[0]),
			Claim:     h.claims[by].Claim,
			From:      epoch.Offset(h.number(o["from"])),
			To:        epoch.Offset(h.number(o["to"])),
			Mark:      epoch.NoMark,
		}
		if mark, ok := o["mark"]; ok {
			a.Mark = epoch.Mark(h.number(mark))
		}
		as = append(as, a)
		under = append(under, h.claims[by].Epoch)
	}
	if err := h.fences.Advance(as); err != nil {
		return answer(err, "")
	}
	var said []string
	for i, a := range as {
		es := slices.Clone(h.effects[a.Partition])
		for o := a.From; o < a.To; o++ {
			es = append(es, fmt.Sprintf("%d@%d", o, under[i]))
		}
		h.effects[a.Partition] = es
		f := h.fences[a.Partition]
		s := fmt.Sprintf("next %d", f.Next)
		if f.Mark >= 0 {
			s += fmt.Sprintf(", mark %d", f.Mark)
		}
		said = append(said, s)
	}
	return strings.Join(said, "; ")
}
