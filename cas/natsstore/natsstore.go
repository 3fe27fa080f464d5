// Package natsstore is a [cas.Store] in a key-value bucket of NATS JetStream, 2.11 or newer.
//
// An item is a key of the bucket. Its value is the key's value, its note a header, and its version
// and number are the sequence of the message in the bucket's stream. The package hides subjects,
// consumers, answers that are lost, and replicas that lag behind.
//
// A bucket that was restored from a backup repeats sequences, and so versions. A write that was
// acknowledged by one server is lost if the server's machine fails before the write is on its disk:
// use three replicas, or sync_interval: always.
//
// The connection's user needs these permissions, where B is the bucket. In a domain, the domain's
// prefix replaces $JS.API and precedes $KV:
//
//	publish    $JS.API.STREAM.INFO.KV_B
//	publish    $JS.API.STREAM.MSG.GET.KV_B
//	publish    $KV.B.>
//	publish    $JS.API.STREAM.CREATE.KV_B     to create the bucket
//	publish    $JS.API.INFO                   to create the bucket
//	publish    $JS.API.CONSUMER.CREATE.KV_B.> to watch and to list
//	publish    $JS.API.CONSUMER.DELETE.KV_B.> to watch and to list
//	publish    $JS.FC.KV_B.>                  to watch
//	publish    $JS.API.CONSUMER.MSG.NEXT.KV_B.> to list
//	publish    $JS.API.CONSUMER.INFO.KV_B.>   to list
//	subscribe  _INBOX.>                       or the connection's own prefix
package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

const (
	noteHeader = "Epochfence-Note" // base64

	// markerTTL is how long the bucket remembers a deletion, so that watchers see it.
	markerTTL = time.Minute

	// longest is the TTL from which a value does not expire at all, because the server adds up
	// nanoseconds that overflow.
	longest = 100 * 365 * 24 * time.Hour
)

// Store is safe for concurrent use.
type Store struct {
	js   jetstream.JetStream
	o    Options
	last atomic.Pointer[cas.Facts] // of the bucket as it was when we last asked
}

var (
	_ cas.Watcher = (*Store)(nil)
	_ cas.Expirer = (*Store)(nil)
)

// Options configure a [Store].
type Options struct {
	// Bucket is the name of the bucket, which Open creates if it does not exist. Required.
	Bucket string

	// Replicas is the number of replicas of a bucket that the store creates. Defaults to 1.
	Replicas int
}

// PermissionError is returned when the connection's user lacks a permission. Its field Subject is the
// subject that the user may not publish or subscribe to.
type PermissionError = jsapi.PermissionError

// Open returns a store on a bucket. It refuses a bucket whose settings lose items, and names how to
// change them. The connection stays the caller's.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Store, error) {
	s := &Store{js: js, o: o}
	if _, err := s.ensure(ctx); err != nil {
		return nil, fmt.Errorf("natsstore: open bucket %q: %w", o.Bucket, err)
	}
	return s, nil
}

func (s *Store) check(key string, value, note []byte) error {
	return s.last.Load().Check(key, value, note)
}

// Now implements [cas.Clock].
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.stream())
	if err != nil {
		return time.Time{}, fmt.Errorf("natsstore: read the server's clock: %w", err)
	}
	return stream.CachedInfo().TimeStamp, nil
}

// Get implements [cas.Store]. The bucket's leader answers. If there is no answer within a second, Get
// asks again, and waits twice as long each time, until ctx ends, or for 5 s if ctx has no deadline.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := s.get(ctx, key)
	return item, failed("get", key, err)
}

func (s *Store) get(ctx context.Context, key string) (cas.Item, error) {
	if err := s.check(key, nil, nil); err != nil {
		return cas.Item{}, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	m, err := s.ask(ctx, map[string]string{"last_by_subj": s.subject(key)})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return cas.Item{Key: key}, nil
	case err != nil:
		return cas.Item{}, jsapi.Denied(s.js.Conn(), jsapi.Prefix(s.js)+"STREAM.MSG.GET."+s.stream(), err)
	}
	var h nats.Header
	if len(m.Header) > 0 {
		if h, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return cas.Item{}, fmt.Errorf("its headers are broken: %w", err)
		}
	}
	return item(key, m.Sequence, h, m.Data)
}

// ask asks the bucket's leader for a message, and asks again if there is no answer. A leader that is
// killed gives none, nor does a connection that ends, and nats.go waits for it until ctx ends. Each wait is
// twice as long as the last. The first answer counts, also if it is that to an earlier request: a link may
// take longer than the wait.
func (s *Store) ask(ctx context.Context, request any) (jsapi.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		m   jsapi.Message
		err error
	}
	answers := make(chan answer, 1)
	for wait := leastWait; ; wait *= 2 {
		go func() {
			m, err := jsapi.Stored(ctx, s.js, s.stream(), request)
			select {
			case answers <- answer{m, err}:
			default:
			}
		}()
		again := time.NewTimer(wait)
		select {
		case a := <-answers:
			again.Stop()
			return a.m, a.err
		case <-again.C:
		}
	}
}

func item(key string, sequence uint64, h nats.Header, value []byte) (cas.Item, error) {
	item := cas.Item{Key: key, Version: strconv.FormatUint(sequence, 10), Number: int64(sequence)}
	if h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != "" {
		return item, nil
	}
	note, err := base64.StdEncoding.DecodeString(h.Get(noteHeader))
	if err != nil {
		return cas.Item{}, fmt.Errorf("%w: the header %s of message %d is not base64; delete the message, or write it without the header: %w", cas.ErrForeign, noteHeader, sequence, err)
	}
	item.Live, item.Value, item.Note = true, value, note
	return item, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	return s.swap(ctx, seen, value, note, 0)
}

// SwapFor implements [cas.Expirer]. The server counts in seconds.
func (s *Store) SwapFor(ctx context.Context, seen cas.Item, value []byte, ttl time.Duration) (cas.Item, error) {
	return s.swap(ctx, seen, value, nil, ttl)
}

func (s *Store) swap(ctx context.Context, seen cas.Item, value, note []byte, ttl time.Duration) (cas.Item, error) {
	m := nats.NewMsg(s.published(seen.Key))
	m.Data = value
	if len(note) > 0 {
		m.Header.Set(noteHeader, base64.StdEncoding.EncodeToString(note))
	}
	if ttl > 0 && ttl < longest {
		m.Header.Set(jetstream.MsgTTLHeader, seconds(ttl))
	}
	sequence, err := s.publish(ctx, seen, m, value, note)
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Number, item.Version = int64(sequence), strconv.FormatUint(sequence, 10)
	return item, nil
}

// seconds rounds up.
func seconds(d time.Duration) string { return strconv.Itoa(int((d+time.Second-1)/time.Second)) + "s" }

// Delete implements [cas.Store]. The bucket remembers the version of the deletion for a minute.
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	m := nats.NewMsg(s.published(seen.Key))
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgTTLHeader, seconds(markerTTL))
	if !seen.Live {
		return failed("delete", seen.Key, errors.Join(s.check(seen.Key, nil, nil), cas.ErrConflict))
	}
	_, err := s.publish(ctx, seen, m, nil, nil)
	return failed("delete", seen.Key, err)
}

func (s *Store) publish(ctx context.Context, seen cas.Item, m *nats.Msg, value, note []byte) (uint64, error) {
	if err := s.check(seen.Key, value, note); err != nil {
		return 0, err
	}
	last := "0"
	if seen.Version != "" {
		last = seen.Version
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, last)
	nc := s.js.Conn()
	if !nc.IsConnected() {
		// nats.go would buffer the message and send it at an unknown time.
		if nc.IsClosed() {
			return 0, nats.ErrConnectionClosed
		}
		return 0, nats.ErrDisconnected
	}
	ack, err := s.settled(ctx, m)
	switch {
	case jsapi.HasCode(err, jetstream.JSErrCodeStreamWrongLastSequence):
		return 0, fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case isFull(err):
		return 0, fmt.Errorf("%w: give it room (nats stream edit %s --max-bytes=-1 --max-msgs=-1 --max-msg-size=-1, or the account more storage), "+
			"or remove items that nobody needs: %w", cas.ErrFull, s.stream(), err)
	case err != nil:
		return 0, jsapi.Denied(nc, m.Subject, err)
	}
	return ack.Sequence, nil
}

// settled publishes m, and again for as long as the server refuses it because another write of the key
// is in process. A cluster says so until that write is applied, and for a moment after readers see it
// (nats-server, jetstream_cluster.go, applyStreamMsgOp): such a refusal has written nothing, and does
// not tell whether the item has changed.
func (s *Store) settled(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	wait := waits.New(time.Millisecond, 50*time.Millisecond)
	for {
		ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectStream(s.stream()), jetstream.WithRetryAttempts(0))
		if !jsapi.HasCode(err, jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
			return ack, err
		}
		if !waits.Sleep(ctx, wait.Next()) {
			return nil, fmt.Errorf("another write of it is in process: %w", ctx.Err())
		}
	}
}

// limited gives ctx a deadline if it has none, as nats.go does for its own requests.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ends := ctx.Deadline(); ends {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestLimit)
}

// Codes of nats-server that nats.go does not name.
const (
	codeAccountExceeded jetstream.ErrorCode = 10002
	codeNoResources     jetstream.ErrorCode = 10023
	codeNoMemory        jetstream.ErrorCode = 10028
	codeNoStorage       jetstream.ErrorCode = 10047
	codeStoreFailed     jetstream.ErrorCode = 10077
)

func isFull(err error) bool {
	return jsapi.HasCode(err, jetstream.JSErrCodeStreamMessageExceedsMaximum, codeAccountExceeded, codeNoResources, codeNoMemory, codeNoStorage) ||
		jsapi.HasCode(err, codeStoreFailed) && strings.Contains(err.Error(), " exceeded") // maximum bytes, messages, or messages per subject
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("natsstore: %s %q: %w", what, key, err)
}
