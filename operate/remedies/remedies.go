// Package remedies has a text for each reason why a partition halts or is lost: what it means, what
// to do, and how to see that it worked. The status page and the command line show these texts, and
// docs/halts.md consists of them, so that there is one place to change.
//
// The package knows no state: callers pass a reason, or a halt as the audit log has it. Its tests
// bring each reason about in memory, follow the remedy, and see the partition continue.
package remedies

import (
	"regexp"
	"strings"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Remedy is the text for one reason.
type Remedy struct {
	Reason   consumer.Reason
	Means    string // the symptom, then the cause
	Do       string
	Check    string // how to see that it worked
	Commands []Command
}

// Command is an epochfence command. Commands that write are a dry run without --execute.
type Command struct {
	Line string // with PARTITION for the partition
	For  string // what it is for
}

// Of returns the remedy for a reason. It returns false if there is none, as for
// [consumer.ReasonNone].
func Of(r consumer.Reason) (Remedy, bool) {
	for _, remedy := range all {
		if remedy.Reason == r {
			return remedy, true
		}
	}
	return Remedy{}, false
}

// For returns the remedy for a halt as the audit log records it: a reason, a colon and the error.
// It returns false for a text that another version has written.
func For(halt string) (Remedy, bool) {
	word, _, _ := strings.Cut(halt, ":")
	for _, r := range all {
		if r.Reason.String() == word {
			return r, true
		}
	}
	return Remedy{}, false
}

// All returns the remedies in the order of their reasons. Callers must not change it.
func All() []Remedy { return all }

// plain matches a name that a shell takes without quotes.
var plain = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// On returns the command for p. It leaves PARTITION in place if a shell would not take p's name
// without quotes, because anybody may have chosen the name of a topic or group.
func (c Command) On(p epoch.Partition) string {
	if s := p.String(); plain.MatchString(s) && !strings.HasPrefix(s, "-") {
		return strings.ReplaceAll(c.Line, "PARTITION", s)
	}
	return c.Line
}

// Text returns, for a terminal, what to do about p and the commands for it.
func (r Remedy) Text(p epoch.Partition) string {
	var b strings.Builder
	b.WriteString(wrap(r.Do) + "\n" + wrap("It worked when: "+r.Check) + "\n")
	for _, c := range r.Commands {
		b.WriteString("  " + c.On(p) + "  # " + c.For + "\n")
	}
	return b.String()
}

// Markdown returns the remedy as a section of docs/halts.md.
func (r Remedy) Markdown() string {
	var b strings.Builder
	b.WriteString("## " + r.Reason.String() + "\n\n" + wrap(r.Means) + "\n\n**What to do.** " + wrap(r.Do) + "\n\n**It worked when:** " + wrap(r.Check) + "\n")
	if len(r.Commands) > 0 {
		b.WriteByte('\n')
	}
	for _, c := range r.Commands {
		b.WriteString("    " + c.Line + "  # " + c.For + "\n")
	}
	return b.String()
}

// wrap breaks lines for readers of the Markdown source.
func wrap(s string) string {
	var b strings.Builder
	at := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case at+1+len(word) > 100:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}
