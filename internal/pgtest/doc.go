// Package pgtest starts PostgreSQL for tests and programs that need one of
// their own.
//
// A test asks for a database:
//
//	db := pgtest.Start(t)
//	pool, err := pgxpool.New(ctx, db.URL)
//
// and gets an empty one with a random name, dropped when the test ends, on a
// server that all tests of the binary share. [StartServer] gives a test a server
// of its own, which it may stop and start again; [Launch] is the same for a
// program that is not a test.
//
// The server is, in this order:
//
//   - the one at the URL in the environment variable EPOCHFENCE_TEST_POSTGRES (for
//     [Start] only), whose role must be allowed to create databases and roles;
//   - one started from the binaries on PATH or below /usr/lib/postgresql;
//   - one started from binaries that are fetched once and kept in the user's
//     cache directory, by github.com/fergusstrange/embedded-postgres. The
//     word "embedded" in EPOCHFENCE_TEST_POSTGRES asks for these; "embedded:14" for
//     the oldest version that is supported.
//
// PostgreSQL refuses to run as root. When the process is root, the server runs
// as the user nobody. It listens on 127.0.0.1 alone, on a free port, asks for a
// random password, and is stopped and deleted when the process that started it
// ends, however it ends.
//
// Where there is no PostgreSQL, [Start] skips the test; with CI=true in the
// environment it fails it.
package pgtest
