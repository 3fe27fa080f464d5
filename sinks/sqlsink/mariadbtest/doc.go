// Package mariadbtest has the tests of sqlsink and sqloutbox on MariaDB. It is a module of its own, so that
// only programs that use MariaDB have its driver in their go.sum.
package mariadbtest
