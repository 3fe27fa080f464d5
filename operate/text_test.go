package operate_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/epochfence/epochfence/operate"
)

func TestTheTextOfAnErrorIsCutWhereASinkKeepsIt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"out of stock":               "out of stock",
		"\xff\x00":                   "\uFFFD\uFFFD",
		strings.Repeat("é", 1<<20):   "… (2097152 bytes)",
		strings.Repeat("\x00", 1999): "\uFFFD",
	} {
		got := operate.ErrorText(errors.New(text))
		if len(got) > operate.MaxText || !utf8.ValidString(got) || !strings.HasSuffix(got, want) {
			t.Errorf("%.20q became %d bytes: %q", text, len(got), got[max(0, len(got)-30):])
		}
	}
	if got := operate.ErrorText(nil); got != "unknown" {
		t.Errorf("%q", got)
	}
}
