package natssource

import (
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"
)

// trouble notes that a request to the bucket has failed, for whoever made it. Those of a bucket that does not
// answer, or is full, fail all of them, and share the lines.
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

// isOutage reports whether nobody has answered, or nobody who could, for a reason that is not this member's.
func isOutage(err error) bool {
	var refused *PermissionError
	return !errors.As(err, &refused) && (passing(err) || errors.Is(err, nats.ErrConnectionClosed))
}

// Those who make requests to the bucket, beside the partitions.
const (
	asMember = "membership"
	asView   = "view"
)
