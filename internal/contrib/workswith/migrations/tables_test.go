// Package migrations writes epochfence's tables for a migration tool.
package migrations

import (
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Write writes epochfence's tables for goose, after a dozen migrations of the application's.
func Write(dir string) error {
	ms, err := pgsink.Migrations(pgsink.Options{})
	if err != nil {
		return err
	}
	return migrations.Write(dir, migrations.Goose, "00013", ms...)
}
