// Package pgsink keeps fences in PostgreSQL.
package pgsink
