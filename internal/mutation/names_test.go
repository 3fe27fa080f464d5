package mutation

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What belongs to one kind of source.
var ofOneKind = regexp.MustCompile(`(?i)kafka|\bkgo|franz|\bnats|jetstream`)

// The core is the same for all sources, so it names none, not even in a comment
// or a test: what it needs of one has to be said in the terms of the protocol.
func TestNothingInTheCoreNamesKafkaOrNATS(t *testing.T) {
	found := 0
	for _, folder := range []string{"epoch", "consumer"} {
		files, err := filepath.Glob(filepath.Join(module, folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if ext := filepath.Ext(path); ext != ".go" && ext != ".txt" {
				continue
			}
			found++
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for n, line := range regexp.MustCompile(`\n`).Split(string(src), -1) {
				if ofOneKind.MatchString(line) {
					t.Errorf("%s:%d: %s", path, n+1, line)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("looked at %d files only", found)
	}
}
