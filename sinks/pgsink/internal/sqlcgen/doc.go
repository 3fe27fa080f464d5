// Package sqlcgen is what sqlc generates from schema.sql and query.sql with
// sql_package "pgx/v5": the code that users have, which must compile and run on
// a pgsink.Tx unchanged.
package sqlcgen
