package natsoutbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file has the batches in NATS. A position is only stored if no other was stored since the session
// has read one, and a batch only with its position. A session begins by storing the position that it
// has read once more. From then on, what an earlier session has sent, and the server did not
// store yet, is refused: it expects the position before. The subject of a first position names the creation of
// the stream: in one that was recreated, the sequence that an earlier session expects may be a position's again.

// Codes of nats-server for a batch or position that was not stored (server/errors.json).
const (
	codeWrongLast  = 10071 // another position was stored
	codeIncomplete = 10176 // messages of the batch are missing, or too many batches are open
)

const (
	headerExpected = "Nats-Expected-Last-Subject-Sequence"
	headerStream   = "Nats-Expected-Stream"
	headerRollup   = "Nats-Rollup"
	headerID       = "Nats-Msg-Id"
	headerBatch    = "Nats-Batch-Id"
	headerSequence = "Nats-Batch-Sequence"
	headerCommit   = "Nats-Batch-Commit"
)

// stored is the data of a position.
type stored struct {
	Number int64  `json:"number"`
	Name   string `json:"name"`
}

// session is a reader of the position that has fenced those before.
type session struct {
	o       Options
	of      string // begins the subject
	subject string // of the position
	at      batches.Position
	last    uint64 // the sequence of the position, or 0
	stream  jetstream.StreamConfig
}

func (s *session) At() batches.Position { return s.at }
func (s *session) Close()               {}

// open returns a session. Without a position there is nothing to fence: a batch of an earlier session
// expects one. After a first position, it reads again in which stream that is.
func (o Options) open(ctx context.Context, subject string, mayBegin bool) (*session, error) {
	for {
		s := &session{o: o, of: subject}
		err := s.read(ctx)
		switch {
		case err == nil && s.at.Number < 0 && !mayBegin:
			return s, nil
		case err == nil && s.at.Number < 0:
			if err = s.Write(ctx, s.at.Next()); err == nil {
				continue
			}
		case err == nil:
			err = s.Write(ctx, s.at)
		}
		if !jsapi.HasCode(err, codeWrongLast) || ctx.Err() != nil { // another session has begun, or stored its batch
			return s, err
		}
	}
}

// read reads the stream's configuration and the position, from the leader.
func (s *session) read(ctx context.Context) error {
	js := s.o.JetStream
	var info jetstream.StreamInfo
	err := jsapi.Ask(ctx, js, "STREAM.INFO."+s.o.Stream, struct{}{}, &info)
	if err = jsapi.Denied(js.Conn(), jsapi.Prefix(js), err); err != nil {
		return fmt.Errorf("natsoutbox: read the configuration of stream %s: %w", s.o.Stream, err)
	}
	s.stream = info.Config
	if s.of != "" {
		s.subject = s.of + "." + strconv.FormatInt(info.Created.UnixNano(), 36)
	}
	if err := s.o.check(info.Config); err != nil {
		return fmt.Errorf("natsoutbox: stream %s: %w", s.o.Stream, err)
	}
	s.at, s.last = batches.Position{Number: -1}, 0
	m, err := jsapi.Stored(ctx, js, s.o.Stream, map[string]string{"last_by_subj": s.subject})
	if s.of != "" && errors.Is(err, jetstream.ErrMsgNotFound) { // a cluster restores a backup as a new stream, with the old positions
		if m, err = jsapi.Stored(ctx, js, s.o.Stream, map[string]string{"last_by_subj": s.of + ".*"}); err == nil {
			s.subject = m.Subject
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("natsoutbox: read the position on subject %s of stream %s: %w", s.subject, s.o.Stream, jsapi.Denied(js.Conn(), jsapi.Prefix(js), err))
	}
	var at stored
	if err := json.Unmarshal(m.Data, &at); err != nil || at.Name == "" {
		return fmt.Errorf("natsoutbox: stream %s: message %d on subject %s is no position: only this relay may use subjects below %s; set Options.Positions to others",
			s.o.Stream, m.Sequence, m.Subject, s.o.Positions)
	}
	s.at, s.last = batches.Position(at), m.Sequence
	return nil
}

// Write stores a position that follows the last. It may be the same one.
func (s *session) Write(ctx context.Context, at batches.Position) error {
	m, err := s.position(at)
	if err == nil {
		err = s.commit(ctx, m, at)
	}
	if err != nil {
		return fmt.Errorf("natsoutbox: write position %d on subject %s of stream %s: %w", at.Number, s.subject, s.o.Stream, err)
	}
	return nil
}

// Send stores the messages of rows and then their position, together or not at all.
func (s *session) Send(ctx context.Context, at batches.Position, rows []outbox.Row) (errs []error, err error) {
	all, errs, err := s.messages(rows)
	if err != nil {
		return errs, err
	}
	m, err := s.position(at)
	if err != nil {
		return nil, err
	}
	nc := s.o.JetStream.Conn()
	before := nc.LastError()
	if s.stream.AllowAtomicPublish {
		id := rand.Text()
		for i, m := range append(all, m) {
			m.Header.Set(headerBatch, id)
			m.Header.Set(headerSequence, strconv.Itoa(i+1))
		}
		m.Header.Set(headerCommit, "1")
		for i, m := range all { // unanswered: what is missing, the commit says
			if err := nc.PublishMsg(m); err != nil {
				return nil, fmt.Errorf("entry %d: %w", rows[i].ID, err)
			}
		}
	} else if err := s.oneByOne(ctx, all, rows); err != nil {
		return s.denied(before, all, err)
	}
	if err := s.commit(ctx, m, at); err != nil {
		err = fmt.Errorf("commit with position %d on subject %s of stream %s: %w", at.Number, s.subject, s.o.Stream, err)
		return s.denied(before, all, err)
	}
	return nil, nil
}

// messages returns the messages of rows, or why the stream would not take some of them.
func (s *session) messages(rows []outbox.Row) (all []*nats.Msg, errs []error, err error) {
	errs = make([]error, len(rows))
	for i, row := range rows {
		m, err := message(row)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, m)
		errs[i] = s.refuses(m)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errs, err
	}
	return all, nil, nil
}

func (s *session) position(at batches.Position) (*nats.Msg, error) {
	m := nats.NewMsg(s.subject)
	m.Header.Set(headerStream, s.o.Stream)
	m.Header.Set(headerExpected, strconv.FormatUint(s.last, 10))
	if s.stream.AllowRollup && !s.stream.DenyPurge {
		m.Header.Set(headerRollup, "sub")
	}
	data, err := json.Marshal(stored(at))
	m.Data = data
	return m, err
}

// commit publishes a position, and with it the batch that it ends.
func (s *session) commit(ctx context.Context, m *nats.Msg, at batches.Position) error {
	sequence, err := s.publish(ctx, m)
	if err != nil {
		return err
	}
	s.at, s.last = at, sequence
	return nil
}

func (s *session) publish(ctx context.Context, m *nats.Msg) (sequence uint64, err error) {
	nc := s.o.JetStream.Conn()
	answer, err := nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, jsapi.Denied(nc, m.Subject, err)
	}
	var ack struct {
		Error    *jetstream.APIError `json:"error"`
		Stream   string              `json:"stream"`
		Sequence uint64              `json:"seq"`
	}
	switch err := json.Unmarshal(answer.Data, &ack); {
	case err != nil:
		return 0, fmt.Errorf("the answer is not one of JetStream's: %w", err)
	case ack.Error != nil:
		return 0, ack.Error
	case ack.Stream != s.o.Stream || ack.Sequence == 0:
		return 0, fmt.Errorf("stream %q has answered", ack.Stream)
	}
	return ack.Sequence, nil
}

// oneByOne stores messages, each after the one before: a message that fails is not overtaken. If the
// stream still knows the ID of a message that it has, it drops the message.
func (s *session) oneByOne(ctx context.Context, all []*nats.Msg, rows []outbox.Row) error {
	for i, m := range all {
		m.Header.Set(headerID, rows[i].IdempotencyKey)
		m.Header.Set(headerStream, s.o.Stream)
		if _, err := s.publish(ctx, m); err != nil {
			return fmt.Errorf("entry %d: %w", rows[i].ID, err)
		}
	}
	return nil
}

// denied finds the messages that the connection's user was not allowed to publish since before: the
// server reports that to the connection, and the messages are missing.
func (s *session) denied(before error, all []*nats.Msg, err error) ([]error, error) {
	nc := s.o.JetStream.Conn()
	if nc.LastError() == before || //nolint:errorlint // whether it is another one
		!jsapi.HasCode(err, codeIncomplete) && !jsapi.Passing(err) && !errors.Is(err, nats.ErrPermissionViolation) {
		return nil, err
	}
	errs := make([]error, len(all))
	for i, m := range all {
		denied, ok := errors.AsType[*jsapi.PermissionError](jsapi.Denied(nc, m.Subject, nats.ErrTimeout))
		if ok && denied.Subject == m.Subject {
			errs[i] = &refusedError{denied}
		}
	}
	return errs, err
}
