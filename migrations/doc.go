// Package migrations hands the tables of epochfence's packages to a migration tool of your
// own, as files beside your own: those of [pgsink.Migrations], [sqlsink.Migrations],
// [pgoutbox.Migrations], [sqloutbox.Migrations] and [httpfence.Migrations].
//
//	sink, err := pgsink.Migrations(pgsink.Options{})
//	box, err := pgoutbox.Migrations(pgoutbox.Options{})
//	err = migrations.Write("db/migrations", migrations.Goose, "0012", slices.Concat(sink, box)...)
//
// Run that once, and commit the files. Each script records that it was applied, so
// that Open knows, and so that pgsink.Migrate and the like do not apply it again. When a
// later version has more, write those alone, under numbers that follow yours:
// box[1:], say.
//
// There is nothing to go down to: who drops the fences has the group begin
// again.
//
// [pgsink.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Migrations
// [sqlsink.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/sqlsink#Migrations
// [pgoutbox.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox/pgoutbox#Migrations
// [sqloutbox.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox/sqloutbox#Migrations
// [httpfence.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/httpfence#Migrations
package migrations
