// Package natsstore is a [cas.Store] in a key-value bucket of NATS JetStream, 2.11 or newer.
//
// An item is a key of the bucket. Its value is the key's value, its note a header, and its version
// and number are the sequence of the message in the bucket's stream.
//
// A bucket that was restored from a backup repeats sequences, and so versions. A write that was
// acknowledged by one server is lost if the server's machine fails before the write is on its disk:
// use three replicas, or sync_interval: always.
//
// The store uses the connection's user for these subjects, where B is the bucket:
//
//	$KV.B.>  $JS.API.STREAM.INFO.KV_B  $JS.API.STREAM.CREATE.KV_B
//	$JS.API.DIRECT.GET.KV_B.>  $JS.API.STREAM.MSG.GET.KV_B
//	$JS.API.CONSUMER.CREATE.KV_B.>  $JS.API.CONSUMER.MSG.NEXT.KV_B.>  $JS.API.CONSUMER.DELETE.KV_B.>
package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/backoff"
)

const (
	noteHeader = "Epochfence-Note" // base64

	// markerTTL is how long the bucket remembers a deletion, so that watchers see it.
	markerTTL = time.Minute
)

// Store is safe for concurrent use.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	bucket string
	facts  cas.Facts
}

// Options configure a [Store].
type Options struct {
	// Bucket is the name of the bucket, which Open creates if it does not exist. Required.
	Bucket string

	// Replicas is the number of replicas of a bucket that Open creates. Defaults to 1.
	Replicas int
}

// Open returns a store on a bucket. It refuses a bucket whose settings lose items, and says how to
// change them. The connection stays the caller's.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Store, error) {
	s, err := open(ctx, js, o)
	if err != nil {
		return nil, fmt.Errorf("natsstore: open bucket %q: %w", o.Bucket, err)
	}
	return s, nil
}

func open(ctx context.Context, js jetstream.JetStream, o Options) (*Store, error) {
	stream, err := js.Stream(ctx, "KV_"+o.Bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: o.Bucket, Description: "items of epochfence", History: 1, Storage: jetstream.FileStorage,
			Replicas: max(o.Replicas, 1), LimitMarkerTTL: markerTTL,
		})
		if err == nil || errors.Is(err, jetstream.ErrBucketExists) {
			stream, err = js.Stream(ctx, "KV_"+o.Bucket)
		}
		for errors.Is(err, jetstream.ErrStreamNotFound) && backoff.Sleep(ctx, 50*time.Millisecond) {
			stream, err = js.Stream(ctx, "KV_"+o.Bucket) // a cluster may not know its new stream at once
		}
	}
	if err != nil {
		return nil, err
	}
	c := stream.CachedInfo().Config
	if err := check(c); err != nil {
		return nil, err
	}
	value := maxValue(js.Conn().MaxPayload(), c.MaxMsgSize)
	if value <= 0 {
		return nil, fmt.Errorf("its messages have at most %d bytes; allow at least 128 KB with: nats stream edit %s --max-msg-size=-1", c.MaxMsgSize, c.Name)
	}
	return &Store{js, stream, o.Bucket, cas.Facts{
		Forgets: c.Storage == jetstream.MemoryStorage, Repeats: true, Numbers: true, ListsWhole: true,
		MaxKey: 1000, MaxValue: value, MaxNote: maxNote,
	}}, nil
}

// maxNote limits a note: in base64 it must fit into the 64 KB that the server allows for headers.
const maxNote = 45 << 10

// maxValue returns the limit of a value beside the largest note.
func maxValue(payload int64, message int32) int {
	if message > 0 {
		payload = min(payload, int64(message))
	}
	return int(payload - 64<<10)
}

func check(c jetstream.StreamConfig) error {
	edit := func(flags string) string { return "nats stream edit " + c.Name + " " + flags }
	switch {
	case c.MaxMsgsPerSubject < 1:
		return errors.New("it is a stream, but not a key-value bucket; name another one or create it with: nats kv add")
	case c.Mirror != nil:
		return fmt.Errorf("it is a mirror of %q, which may lag behind; use that one", c.Mirror.Name)
	case !c.AllowMsgTTL:
		return fmt.Errorf("its markers of deleted keys cannot expire, which takes a limit marker TTL (and nats-server 2.11); set one with: %s", edit("--subject-del-markers-ttl=1m"))
	case c.MaxAge > 0:
		return fmt.Errorf("its keys expire after %v; lift that with: %s", c.MaxAge, edit("--max-age=-1"))
	case c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0):
		return fmt.Errorf("it drops old keys when it is full; let it refuse new ones with: %s", edit("--discard=new"))
	case c.DiscardNewPerSubject:
		return fmt.Errorf("it takes no new value for a key that has one; let it take them with: %s", edit("--no-discard-per-subject"))
	}
	return nil
}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("natsstore: facts: %w", err)
	}
	f := s.facts
	f.Source = "nats-kv:" + s.bucket + "@" + strconv.FormatInt(info.Created.UnixNano(), 10)
	return f, nil
}

// Get implements [cas.Store]. Any replica may answer.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := s.get(ctx, key)
	return item, failed("get", key, err)
}

func (s *Store) get(ctx context.Context, key string) (cas.Item, error) {
	if err := s.facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, err
	}
	m, err := s.stream.GetLastMsgForSubject(ctx, s.subject(key))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return cas.Item{Key: key}, nil
	case err != nil:
		return cas.Item{}, err
	}
	return item(key, m.Sequence, m.Header, m.Data)
}

func item(key string, sequence uint64, h nats.Header, value []byte) (cas.Item, error) {
	item := cas.Item{Key: key, Version: strconv.FormatUint(sequence, 10), Number: int64(sequence)}
	if h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != "" {
		return item, nil
	}
	note, err := base64.StdEncoding.DecodeString(h.Get(noteHeader))
	if err != nil {
		return cas.Item{}, fmt.Errorf("the header %s is not base64: %w", noteHeader, err)
	}
	item.Live, item.Value, item.Note = true, value, note
	return item, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	m := nats.NewMsg(s.subject(seen.Key))
	m.Data = value
	if len(note) > 0 {
		m.Header.Set(noteHeader, base64.StdEncoding.EncodeToString(note))
	}
	sequence, err := s.publish(ctx, seen, m, value, note)
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Number, item.Version = int64(sequence), strconv.FormatUint(sequence, 10)
	return item, nil
}

// Delete implements [cas.Store]. The bucket remembers the version of the deletion for a minute.
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	m := nats.NewMsg(s.subject(seen.Key))
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgTTLHeader, strconv.Itoa(int(markerTTL/time.Second))+"s")
	if !seen.Live {
		return failed("delete", seen.Key, errors.Join(s.facts.Check(seen.Key, nil, nil), cas.ErrConflict))
	}
	_, err := s.publish(ctx, seen, m, nil, nil)
	return failed("delete", seen.Key, err)
}

func (s *Store) publish(ctx context.Context, seen cas.Item, m *nats.Msg, value, note []byte) (uint64, error) {
	if err := s.facts.Check(seen.Key, value, note); err != nil {
		return 0, err
	}
	last := "0"
	if seen.Version != "" {
		last = seen.Version
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, last)
	if nc := s.js.Conn(); !nc.IsConnected() {
		return 0, nats.ErrDisconnected // nats.go would keep the message and send it at an unknown time
	}
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectStream("KV_"+s.bucket), jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, fmt.Errorf("%w: %w", cas.ErrConflict, err)
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// page is the number of items that List fetches at a time.
const page = 256

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range s.list(ctx, prefix) {
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			if item.Live && strings.HasPrefix(item.Key, prefix) && !yield(item, nil) {
				return
			}
		}
	}
}

// list returns the last message of each subject that may have the prefix. It leaves out what is
// written while it runs: the consumer would deliver it as well.
func (s *Store) list(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		info, err := s.stream.Info(ctx)
		if err != nil {
			yield(cas.Item{}, err)
			return
		}
		c, err := s.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			FilterSubject: s.filter(prefix), DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
			AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
		})
		if err != nil {
			yield(cas.Item{}, err)
			return
		}
		defer func() { // without it the server deletes the consumer after a minute
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.stream.DeleteConsumer(ctx, c.CachedInfo().Name)
		}()
		for more := c.CachedInfo().NumPending > 0; more; {
			var items []cas.Item
			items, err = cas.Await(ctx, func() ([]cas.Item, error) { return s.page(c) })
			if err != nil {
				yield(cas.Item{}, err)
				return
			}
			more = len(items) > 0
			for _, item := range items {
				if item.Number > int64(info.State.LastSeq) {
					more = false
				} else if !yield(item, nil) {
					return
				}
			}
		}
	}
}

// page returns the next messages, or none at the end. It does not wait for more: messages that were
// pending are gone once they are replaced.
func (s *Store) page(c jetstream.Consumer) (items []cas.Item, err error) {
	batch, err := c.FetchNoWait(page)
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		item, err := s.listed(m)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, batch.Error()
}

// listed returns the item of a message. The message of a stranger's key, which no key of the store
// has, is an item that is not Live.
func (s *Store) listed(m jetstream.Msg) (cas.Item, error) {
	meta, err := m.Metadata()
	if err != nil {
		return cas.Item{}, err
	}
	if key, ok := s.key(m.Subject()); ok {
		return item(key, meta.Sequence.Stream, m.Headers(), m.Data())
	}
	return cas.Item{Number: int64(meta.Sequence.Stream)}, nil
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("natsstore: %s %q: %w", what, key, err)
}
