package natssource

import (
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"
)

// trouble logs that a request to the bucket has failed for who. If the bucket does not answer or is
// full, everybody's requests fail and share the log lines.
func (b *bucket) trouble(who, what string, err error, attrs ...any) {
	level, key := slog.LevelWarn, what
	var full *fullError
	switch {
	case errors.As(err, &full):
		level, attrs = slog.LevelError, nil
		what = "the bucket of the leases is full: what is leased cannot be renewed, and is lost when its TTL has run out"
		key = what
	case isOutage(err):
		attrs = append([]any{"request", what}, attrs...)
		what = "the bucket of the leases does not answer, trying again"
		key = what
	}
	b.troubles.Add(b.log, level, who, key, what, append(attrs, "bucket", b.name, "err", err)...)
}

// isOutage reports whether no server answered that could, for a reason outside this member.
func isOutage(err error) bool {
	var refused *PermissionError
	return !errors.As(err, &refused) && (passing(err) || errors.Is(err, nats.ErrConnectionClosed))
}

// Values of who that are not partitions.
const (
	asMember = "membership"
	asView   = "view"
)
