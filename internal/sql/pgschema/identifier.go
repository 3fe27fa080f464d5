package pgschema

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// maxIdentifier is the number of bytes that PostgreSQL keeps of an identifier. It cuts off the rest
// without an error.
const maxIdentifier = 63

// CheckIdentifier returns an error unless name can be the name of a schema or a role. option is the
// user's name for it.
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
