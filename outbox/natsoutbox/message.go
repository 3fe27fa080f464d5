package natsoutbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file decides which messages can ever be sent. Package batches has the form in which stores keep them.

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
