// Package migrations writes epochfence's tables for a migration tool.
package migrations

import (
	"slices"

	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Write writes the tables of the sink and of an outbox for goose, after a dozen
// migrations of the application's.
func Write(dir string) error {
	sink, err := pgsink.Migrations(pgsink.Options{})
	if err != nil {
		return err
	}
	box, err := pgoutbox.Migrations(pgoutbox.Options{})
	if err != nil {
		return err
	}
	return migrations.Write(dir, migrations.Goose, "00013", slices.Concat(sink, box)...)
}
