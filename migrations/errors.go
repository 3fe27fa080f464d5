package migrations

import "errors"

// Errors of Open and Migrate of all packages that have tables. Their text says what to do.
var (
	// ErrNotMigrated is returned when the tables do not exist.
	ErrNotMigrated = errors.New("schema is not migrated")

	// ErrOlder is returned when the tables lack migrations that the program needs.
	ErrOlder = errors.New("schema is older than this program")

	// ErrNewer is returned when a newer version of the package has migrated the tables.
	ErrNewer = errors.New("schema is newer than this program")
)
