package migrations

import "errors"

// Errors of Open and Migrate of all packages that have tables. Their text says what to do.
var (
	// ErrNotMigrated is returned when the tables do not exist.
	ErrNotMigrated = errors.New("schema is not migrated")

	// ErrOlder is returned when the tables lack migrations that the program needs.
	ErrOlder = errors.New("schema is older than this program")

	// ErrNewer is returned when a program of a later major number has migrated the tables: their version is
	// 1000 or more above. Other newer tables have all that the program needs.
	ErrNewer = errors.New("schema is newer than this program")
)
