// Package pgtest starts PostgreSQL for tests and programs that need a server of their own.
//
// A test asks for a database:
//
//	db := pgtest.Start(t)
//	pool, err := pgxpool.New(ctx, db.URL)
//
// The database is empty, has a random name, and is dropped when the test ends. All tests of the
// binary share its server. [StartServer] starts a server for one test, which may stop and start it
// again. [Launch] does the same for a program that is not a test.
//
// The server is, in this order:
//
//   - the one at the URL in the environment variable EPOCHFENCE_TEST_POSTGRES (for [Start] only),
//     whose role must be allowed to create databases and roles;
//   - one started from the binaries on PATH or below /usr/lib/postgresql;
//   - one started from binaries that github.com/fergusstrange/embedded-postgres fetches once into
//     the user's cache directory. EPOCHFENCE_TEST_POSTGRES=embedded asks for these, and
//     EPOCHFENCE_TEST_POSTGRES=embedded:14 for the oldest supported version.
//
// PostgreSQL refuses to run as root. If the process is root, the server runs as the user nobody.
// The server listens on 127.0.0.1 alone, on a free port, and requires a random password. It is
// stopped and deleted when the process that started it ends, even by a crash.
//
// Without PostgreSQL, [Start] skips the test. With CI=true in the environment it fails the test.
package pgtest
