// Package migrations writes the SQL that creates the tables of epochfence's packages into files for
// your own migration tool.
//
//	ms, err := pgsink.Migrations(pgsink.Options{})
//	err = migrations.Write("db/migrations", migrations.Goose, "0012", ms...)
//
// Run that once, and commit the files. Each script records that it was applied. Open checks that
// record, and pgsink.Migrate and the like do not apply the script again. When a later version of
// epochfence has more migrations, write only the new ones, for example ms[6:], under numbers that
// follow yours.
//
// There are no down migrations: dropping the fences would make the group begin again.
//
// [pgsink.Migrations]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/pgsink#Migrations
package migrations
