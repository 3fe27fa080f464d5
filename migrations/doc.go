// Package migrations writes the SQL that creates the tables of epochfence's packages into files for
// your own migration tool.
//
//	sink, err := pgsink.Migrations(pgsink.Options{})
//	box, err := pgoutbox.Migrations(pgoutbox.Options{})
//	err = migrations.Write("db/migrations", migrations.Goose, "0012", slices.Concat(sink, box)...)
//
// Run that once, and commit the files. Each script records that it was applied. Open checks that
// record, and pgsink.Migrate and the like do not apply the script again. When a later version of
// epochfence has more migrations, write only the new ones, for example box[1:], under numbers that
// follow yours.
//
// There are no down migrations: dropping the fences would make the group begin again.
//
// [pgsink.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Migrations
package migrations
