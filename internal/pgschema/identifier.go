package pgschema

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// maxIdentifier is how many bytes of an identifier PostgreSQL keeps. It cuts
// off the rest without an error.
const maxIdentifier = 63

// CheckIdentifier refuses what cannot be the name of a schema or a role. Option is
// what the user knows it by.
func CheckIdentifier(option, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", option)
	case !utf8.ValidString(name) || strings.Contains(name, "\x00"):
		return fmt.Errorf("%s %q is not UTF-8 without NUL", option, name)
	case len(name) > maxIdentifier:
		return fmt.Errorf("%s %q has %d bytes; PostgreSQL keeps %d", option, name, len(name), maxIdentifier)
	}
	return nil
}

// Quote quotes an identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }
