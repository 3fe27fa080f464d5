package natsoutbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file decides which streams can hold messages and positions, and which messages a stream refuses.
// A batch is checked before it is sent: the server says of a batch only that messages are missing.

// minAge is twice the interval at which the relay stores the position again while messages are refused.
const minAge = 2 * time.Hour

// minSize is more than a position has, with its headers.
const minSize = 1024

// check returns why positions would be lost, or batches be refused, or nil.
func (o Options) check(c jetstream.StreamConfig) error {
	position := o.Positions + ".group.topic.0.created"
	switch {
	case !c.AllowAtomicPublish && !o.MessageIDs:
		return errors.New("it has no AllowAtomicPublish, which needs nats-server 2.12 or newer: set that, or Options.MessageIDs, which guarantees less")
	case !slices.ContainsFunc(c.Subjects, func(pattern string) bool { return matches(pattern, position) }):
		return fmt.Errorf("its subjects %q do not include the positions: add %q", c.Subjects, o.Positions+".>")
	case c.Mirror != nil || c.Sealed || c.NoAck:
		return errors.New("it is a mirror, or sealed, or does not acknowledge (NoAck): nothing can be published into it safely")
	case c.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("its retention is %v, which discards positions: want %v", c.Retention, jetstream.LimitsPolicy)
	case c.DiscardNewPerSubject:
		return errors.New("DiscardNewPerSubject refuses a position while it has the one before: want it off")
	case c.MaxAge > 0 && c.MaxAge < minAge:
		return fmt.Errorf("its MaxAge of %v discards positions that are needed: want none, or at least %v", c.MaxAge, minAge)
	case c.MaxMsgSize > 0 && c.MaxMsgSize < minSize:
		return fmt.Errorf("its MaxMsgSize of %d leaves no room for a position: want at least %d", c.MaxMsgSize, minSize)
	case c.SubjectTransform != nil:
		return errors.New("it transforms subjects, so that positions would not be found: want no SubjectTransform")
	case c.AllowMsgCounter:
		return errors.New("it stores counters (AllowMsgCounter), and no messages")
	}
	return nil
}

// refusedError is why the stream does not take a message.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

func refusal(err error) batches.Refusal {
	if _, ok := errors.AsType[*refusedError](err); ok {
		return batches.Refused
	}
	return batches.NotRefused
}

func (s *session) refuses(m *nats.Msg) error {
	if !slices.ContainsFunc(s.stream.Subjects, func(pattern string) bool { return matches(pattern, m.Subject) }) {
		return &refusedError{fmt.Errorf("stream %s has the subjects %q", s.o.Stream, s.stream.Subjects)}
	}
	size := len(m.Data) + reservedBytes
	for name, values := range m.Header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	most := s.o.JetStream.Conn().MaxPayload()
	if n := int64(s.stream.MaxMsgSize); n > 0 {
		most = min(most, n)
	}
	if int64(size) > most {
		return &refusedError{fmt.Errorf("a message of %d bytes, with %d for our headers; stream %s takes %d", size, reservedBytes, s.o.Stream, most)}
	}
	return nil
}

// matches reports whether a stream with this subject, which may have wildcards, stores a subject.
func matches(pattern, subject string) bool {
	patterns, tokens := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, p := range patterns {
		if p == ">" {
			return i < len(tokens)
		}
		if i >= len(tokens) || p != "*" && p != tokens[i] {
			return false
		}
	}
	return len(patterns) == len(tokens)
}
