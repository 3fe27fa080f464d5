package pgsink

import (
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
)

// This file decides which functions operators and readers may execute. schema.go has those of the
// application.

// The functions that each kind of role may execute. A reader sees fences, the audit log and a list
// of the dead letters. An operator also sees the messages of dead letters, and acts.
var (
	readerFunctions   = []string{"schema_version", "server", "list_fences", "list_processes", "read_decisions", "list_dead_letters", "protections", "outside_writes"}
	operatorFunctions = append([]string{"act", "show_dead_letter", "act_on_dead_letter", "outside", "forget_outside"}, readerFunctions...)
)

// GrantReaderSQL returns SQL that lets role read what [OpenOperator] shows, except the messages of
// dead letters, and change nothing. Run it as the schema's owner, again after each migration that
// adds functions.
func GrantReaderSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, readerFunctions)
}

// GrantOperatorSQL returns SQL that lets role do all that [OpenOperator] offers. To end the open
// transactions of an owner, role must also be a member of the application's role: grant it that
// role. Run the SQL as the schema's owner, again after each migration that adds functions.
func GrantOperatorSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, operatorFunctions)
}

func grantSQL(role string, o Options, functions []string) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if err := pgschema.CheckIdentifier("role", role); err != nil {
		return "", fmt.Errorf("pgsink: %w", err)
	}
	s, r := pgschema.Quote(o.Schema), pgschema.Quote(role)
	var b strings.Builder
	fmt.Fprintf(&b, "grant usage on schema %s to %s;\n", s, r)
	b.WriteString("grant execute on function")
	for i, f := range functions {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    %s.%s", s, f)
	}
	fmt.Fprintf(&b, "\nto %s;\n", r)
	return b.String(), nil
}
