package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file creates the bucket, and decides which settings lose items. Facts repeats the check. It maps keys
// to subjects and back: a key's parts between slashes are the tokens of its subject, so that the server can
// filter by prefix. An empty token is "=".

// ensure creates the bucket if it does not exist, checks its settings and returns its facts.
func (s *Store) ensure(ctx context.Context) (cas.Facts, error) {
	stream, err := s.look(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.create(ctx)
	}
	if err != nil {
		return cas.Facts{}, jsapi.Denied(s.js.Conn(), jsapi.Prefix(s.js), err)
	}
	info := stream.CachedInfo()
	c := info.Config
	largest := s.js.Conn().MaxPayload()
	if c.MaxMsgSize > 0 {
		largest = min(largest, int64(c.MaxMsgSize))
	}
	if err := check(c, largest); err != nil {
		return cas.Facts{}, fmt.Errorf("%w: %w", cas.ErrUnsuitable, err)
	}
	f := cas.Facts{
		Source:  "nats-kv:" + s.o.Bucket + "@" + strconv.FormatInt(info.Created.UnixNano(), 10),
		Forgets: c.Storage == jetstream.MemoryStorage || c.PersistMode == jetstream.AsyncPersistMode, Repeats: true, Numbers: true, ListsWhole: true, MaxKey: maxKey,
	}
	f.MaxValue, f.MaxNote = limits(largest)
	s.last.Store(&f)
	return f, nil
}

// look asks for the bucket's stream. Each request has its own time, because a link may be slow.
func (s *Store) look(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return s.js.Stream(ctx, s.stream())
}

func (s *Store) create(ctx context.Context) (jetstream.Stream, error) {
	creating, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	_, err := s.js.CreateKeyValue(creating, jetstream.KeyValueConfig{
		Bucket: s.o.Bucket, Description: "items of epochfence", History: 1, Storage: jetstream.FileStorage,
		Replicas: max(s.o.Replicas, 1), LimitMarkerTTL: markerTTL,
	})
	switch {
	case errors.Is(err, jetstream.ErrLimitMarkerTTLNotSupported):
		return nil, fmt.Errorf("the server is older than 2.11, the first that lets a single key expire; upgrade it: %w", err)
	case err != nil && !errors.Is(err, jetstream.ErrBucketExists):
		return nil, err
	}
	ctx, cancel = context.WithTimeout(ctx, createLimit)
	defer cancel()
	stream, err := s.look(ctx)
	for errors.Is(err, jetstream.ErrStreamNotFound) && waits.Sleep(ctx, 50*time.Millisecond) {
		stream, err = s.look(ctx) // a cluster may not know its new stream at once
	}
	return stream, err
}

func (s *Store) stream() string { return "KV_" + s.o.Bucket }

const (
	// createLimit limits the requests that create a bucket, and then the wait for it.
	createLimit = 10 * time.Second

	// requestLimit limits one request.
	requestLimit = 5 * time.Second

	// leastWait is the first wait for the answer to a read. Later ones are longer.
	leastWait = time.Second

	maxKey     = 1000
	leastValue = 1 << 10
)

// limits returns the limits of a value and a note in a message. The note in base64 must fit into the
// 64 KB that the server allows for headers.
func limits(message int64) (value, note int) {
	const headers = 512 // of other headers
	note = max(min(45<<10, int(message)/8), 0)
	return int(message) - base64.StdEncoding.EncodedLen(note) - headers, note
}

// check returns why a bucket loses items, or takes or acknowledges none. largest is the size of its largest message.
func check(c jetstream.StreamConfig, largest int64) error {
	edit := func(flags string) string { return "nats stream edit " + c.Name + " " + flags }
	value, _ := limits(largest)
	subjects := "$KV." + strings.TrimPrefix(c.Name, "KV_") + ".>"
	switch {
	case c.MaxMsgsPerSubject < 1 || c.Retention != jetstream.LimitsPolicy:
		return errors.New("it is a stream, but not a key-value bucket; name another one or create it with: nats kv add")
	case c.Mirror != nil:
		return fmt.Errorf("it is a mirror of %q, which may lag behind; use that one, with jetstream.NewWithDomain if it is in another domain", c.Mirror.Name)
	case c.Sealed:
		return errors.New("it is sealed, and takes no values any more; name another one")
	case !slices.ContainsFunc(c.Subjects, func(s string) bool { return covers(s, subjects) }):
		return fmt.Errorf("it does not listen to the subjects of its keys; let it with: %s", edit("--subjects '"+subjects+"'"))
	case c.SubjectTransform != nil:
		return fmt.Errorf("it stores keys under other subjects; remove its subject_transform with: %s", edit("--interactive"))
	case c.NoAck:
		return fmt.Errorf("it acknowledges no writes; let it with: %s", edit("--ack"))
	case !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL <= 0: // without markers, nobody sees that a key has expired
		return fmt.Errorf("its keys cannot expire one by one, which takes a limit marker TTL (and nats-server 2.11); set one with: %s", edit("--subject-del-markers-ttl=1m"))
	case c.MaxAge > 0:
		return fmt.Errorf("all of its keys expire after %v; lift that with: %s", c.MaxAge, edit("--max-age=-1"))
	case c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0):
		return fmt.Errorf("it drops old keys when it is full; let it refuse new ones with: %s", edit("--discard=new"))
	case c.DiscardNewPerSubject:
		return fmt.Errorf("it takes no new value for a key that has one; let it take them with: %s", edit("--no-discard-per-subject"))
	case value < leastValue:
		return fmt.Errorf("its messages have at most %d bytes; allow more with: %s (or by the server's max_payload)", largest, edit("--max-msg-size=-1"))
	}
	return nil
}

// covers reports whether a stream with this subject stores all of a bucket's subjects, $KV.B.>.
func covers(subject, all string) bool {
	return subject == all || subject == ">" || subject == "$KV.>" || subject == "$KV.*.>"
}

// Facts implements [cas.Store]. It creates the bucket if somebody has deleted it, and returns an
// error if the bucket was given settings that lose items.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	f, err := s.ensure(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("natsstore: facts of bucket %q: %w", s.o.Bucket, err)
	}
	return f, nil
}

const emptyToken = "="

// prefix begins the subjects of stored items.
func (s *Store) prefix() string { return "$KV." + s.o.Bucket + "." }

// published returns the subject to publish an item to, which in a domain is another one, as in
// nats.go's key-value store.
func (s *Store) published(key string) string {
	if p := jsapi.Prefix(s.js); p != jetstream.DefaultAPIPrefix {
		return p + s.subject(key)
	}
	return s.subject(key)
}

func (s *Store) subject(key string) string {
	tokens := strings.Split(key, "/")
	for i, t := range tokens {
		if t == "" {
			tokens[i] = emptyToken
		} else {
			tokens[i] = cas.Escape(t)
		}
	}
	return s.prefix() + strings.Join(tokens, ".")
}

// key returns the key that has the subject. ok is false if there is none.
func (s *Store) key(subject string) (key string, ok bool) {
	tokens := strings.Split(strings.TrimPrefix(subject, s.prefix()), ".")
	for i, t := range tokens {
		if t == emptyToken {
			tokens[i] = ""
			continue
		}
		part, err := cas.Unescape(t)
		if err != nil {
			return "", false
		}
		tokens[i] = part
	}
	key = strings.Join(tokens, "/")
	return key, s.subject(key) == subject
}

// filter returns the subjects of all keys that begin with prefix, and of others beside them.
func (s *Store) filter(prefix string) string {
	prefix = prefix[:min(len(prefix), maxKey)] // the server ends connections that use longer subjects
	last := strings.LastIndex(prefix, "/")
	if last < 0 {
		return s.prefix() + ">"
	}
	return s.subject(prefix[:last]) + ".>"
}

// KeyInBucket returns the name of an item's key in the bucket, for the nats command.
func (s *Store) KeyInBucket(key string) string {
	return strings.TrimPrefix(s.subject(key), s.prefix())
}
