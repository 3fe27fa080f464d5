package natsoutbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file decides which messages can ever be sent, which streams can hold messages and positions, and which
// messages a stream refuses. Package batches has the form in which stores keep messages. A batch is checked before it
// is sent: the server says of a batch only that messages are missing.

// Message is a message to publish.
type Message struct {
	// Subject is one of the stream.
	Subject string

	// Key orders messages: those of one partition of the consumer with the same Key are stored in the
	// order in which they were added, on all subjects. Defaults to Subject.
	Key string

	Data []byte

	// Header must have no names that begin with "Nats-".
	Header nats.Header
}

// reservedBytes is what the relay adds to a message: its headers.
const reservedBytes = 256

func (o Options) record(m Message) (batches.Record, error) {
	wrong := func(format string, args ...any) (batches.Record, error) {
		return batches.Record{}, fmt.Errorf("natsoutbox: %w: "+format, append([]any{outbox.ErrEntry}, args...)...)
	}
	if !validSubject(m.Subject) || m.Subject == o.Positions || strings.HasPrefix(m.Subject, o.Positions+".") {
		return wrong("subject %q; want one without wildcards and spaces, that is not below %s", m.Subject, o.Positions)
	}
	r := batches.Record{Destination: m.Subject, Value: m.Data}
	if r.Value == nil {
		r.Value = []byte{}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		if !validName(name) || len(name) >= 5 && strings.EqualFold(name[:5], "Nats-") {
			return wrong("header %q; want a name of ASCII without colons and spaces that does not begin with Nats-", name)
		}
		for _, value := range m.Header[name] {
			if strings.ContainsAny(value, "\r\n") || strings.TrimSpace(value) != value {
				return wrong("header %s has a value with a line break, or with a space at an end", name) // the value may be secret
			}
			r.Headers = append(r.Headers, epoch.Header{Key: name, Value: []byte(value)})
		}
	}
	if size, most := r.Size()+reservedBytes, o.JetStream.Conn().MaxPayload(); int64(size) > most && most > 0 {
		return wrong("a message of %d bytes for subject %s, with %d for our headers; the server takes %d", size, m.Subject, reservedBytes, most)
	}
	return r, nil
}

func validSubject(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' }) {
			return false
		}
	}
	return len(subject) <= 1024
}

func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' })
}

// message returns the message of an entry.
func message(row outbox.Row) (*nats.Msg, error) {
	r, err := batches.Parse(row)
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(r.Destination)
	m.Data = r.Value
	for _, field := range r.Headers {
		m.Header[field.Key] = append(m.Header[field.Key], string(field.Value))
	}
	return m, nil
}

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
