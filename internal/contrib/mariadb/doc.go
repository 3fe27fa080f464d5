// Package mariadb has the tests of sqlsink and sqloutbox on MariaDB. It is here so that only programs that
// use MariaDB have its driver in their go.sum.
package mariadb
