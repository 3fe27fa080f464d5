package natssource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/internal/troubles"
	"github.com/epochfence/epochfence/internal/backoff"
)

// markerTTL is how long the bucket keeps the marker of a key that expired or of a member that left,
// so that watchers see it.
const markerTTL = time.Minute

// bucket is the key-value bucket of the leases. It uses the bucket's stream, because
// [jetstream.KeyValue.Update] drops a key's TTL and a lagging replica may answer Get.
type bucket struct {
	js     jetstream.JetStream
	name   string
	stream string
	stored string // subject prefix of stored keys
	put    string // subject prefix of published keys
	ttl    time.Duration
	needs  needs
	log    *slog.Logger

	troubles *troubles.Log[string]
}

func newBucket(js jetstream.JetStream, name string, ttl time.Duration, log *slog.Logger) *bucket {
	b := &bucket{js: js, name: name, stream: "KV_" + name, stored: "$KV." + name + ".", ttl: ttl, log: log, troubles: troubles.New[string](log, "concerned")}
	b.put = b.stored
	if p := apiPrefix(js); p != jetstream.DefaultAPIPrefix {
		b.put = p + b.stored // as nats.go's key-value store does for domains
	}
	return b
}

// source names the bucket in fences. The name does not include the time of creation: a bucket that
// was created again leases the same partitions, and the sink continues its epochs.
func (b *bucket) source() string {
	if p := apiPrefix(b.js); p != jetstream.DefaultAPIPrefix {
		return "nats-kv:" + b.name + "@" + strings.TrimSuffix(p, ".")
	}
	return "nats-kv:" + b.name
}

func (b *bucket) ensure(ctx context.Context, replicas int) error {
	nc := b.js.Conn()
	st, err := b.js.Stream(ctx, b.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: b.name, Description: "partition leases of epochfence", History: 1,
			Storage: jetstream.FileStorage, Replicas: replicas, LimitMarkerTTL: markerTTL,
		})
		switch {
		case err == nil:
			b.log.Info("created the bucket of the leases", "bucket", b.name, "replicas", replicas)
		case errors.Is(err, jetstream.ErrLimitMarkerTTLNotSupported):
			return fmt.Errorf("natssource: create bucket %q: the server is older than 2.11, the first that lets a single key expire; upgrade it: %w", b.name, err)
		case !errors.Is(err, jetstream.ErrBucketExists):
			return fmt.Errorf("natssource: create bucket %q: %w", b.name, denied(nc, apiPrefix(b.js), err))
		}
		st, err = b.js.Stream(ctx, b.stream)
		for errors.Is(err, jetstream.ErrStreamNotFound) && backoff.Sleep(ctx, 50*time.Millisecond) {
			st, err = b.js.Stream(ctx, b.stream) // a cluster may not know its new stream at once
		}
	}
	if err != nil {
		return fmt.Errorf("natssource: look at bucket %q: %w", b.name, denied(nc, apiPrefix(b.js), err))
	}
	if err := b.check(st.CachedInfo().Config); err != nil {
		return fmt.Errorf("natssource: bucket %q cannot hold leases: %w", b.name, err)
	}
	return nil
}

func (b *bucket) check(config jetstream.StreamConfig) error {
	return cmp.Or(checkBucket(config, b.ttl), b.needs.check(config))
}

// life changes when the bucket may have become another one: the bucket, or its server, was created
// again or restored.
type life struct {
	incarnation
	reconnects uint64
}

// life returns the bucket's current life. It logs unsuitable settings that somebody made, and does
// not change them back.
func (b *bucket) life(ctx context.Context) (life, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	over := b.js.Conn().Stats().Reconnects
	st, err := b.js.Stream(ctx, b.stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return life{}, jetstream.ErrBucketNotFound
	case err != nil:
		return life{}, denied(b.js.Conn(), apiPrefix(b.js)+"STREAM.INFO."+b.stream, err)
	}
	info := st.CachedInfo()
	if err := b.check(info.Config); err != nil {
		b.troubles.Add(b.log, slog.LevelError, "settings", err.Error(),
			"the bucket of the leases was given settings with which it does not keep them as it must", "bucket", b.name, "err", err)
	} else {
		b.troubles.Well("settings")
	}
	return life{incarnationOf(info), over}, nil
}

func checkBucket(c jetstream.StreamConfig, ttl time.Duration) error {
	edit := func(flags string) string { return "nats stream edit " + c.Name + " " + flags }
	switch {
	case c.MaxMsgsPerSubject < 1:
		return errors.New("it is a stream, but not a key-value bucket; name another one or create it with: nats kv add")
	case c.Mirror != nil:
		return fmt.Errorf("it is a mirror of %q, which may lag behind; use that one, with jetstream.NewWithDomain if need be", c.Mirror.Name)
	case !c.AllowMsgTTL, c.SubjectDeleteMarkerTTL <= 0:
		return fmt.Errorf("its keys cannot expire one by one, which takes a limit marker TTL (and nats-server 2.11); set one with: %s", edit("--subject-del-markers-ttl=1m"))
	case c.MaxAge > 0:
		return fmt.Errorf("all of its keys expire after %v, the positions too; leases have a TTL of their own; lift it with: %s", c.MaxAge, edit("--max-age=-1"))
	case c.MaxMsgsPerSubject > 1 && c.SubjectDeleteMarkerTTL > ttl:
		return fmt.Errorf("it keeps a history of %d, and then its limit marker TTL of %v replaces the lease TTL of %v, which is shorter; lower the one with: %s",
			c.MaxMsgsPerSubject, c.SubjectDeleteMarkerTTL, ttl, edit("--max-msgs-per-subject=1"))
	case c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0):
		return fmt.Errorf("it drops old keys when it is full, and so live leases; let it refuse new ones with: %s", edit("--discard=new"))
	case c.DiscardNewPerSubject:
		return fmt.Errorf("it takes no new value for a key that has one, and so no renewal; let it take them with: %s", edit("--no-discard-per-subject"))
	}
	return nil
}

// revision is the sequence of a key's last message. It is 0 for a key that does not exist: a swap
// at 0 creates the key.
type revision = uint64

type entry struct {
	rev     revision
	live    bool // the key has a value; otherwise it has a delete marker, or nothing if rev is 0
	expired bool // the server left the marker when the TTL ran out
	value   []byte
}

var errSwapped = errors.New("the key has changed meanwhile")

var errNoBucket = errors.New("the bucket does not exist")

// swap writes a value if the key is still at last. The key expires after ttl, or never if ttl is
// zero. After any error other than errSwapped, the value may have been written, or may be written
// later.
func (b *bucket) swap(ctx context.Context, key string, value []byte, last revision, ttl time.Duration) (revision, error) {
	// The padding keeps renewals at one size although the length of last in the header varies.
	m := b.message(key, pad(value, len(value)+len(strconv.FormatUint(math.MaxUint64, 10))-len(strconv.FormatUint(last, 10))))
	if ttl > 0 {
		m.Header.Set(jetstream.MsgTTLHeader, seconds(ttl))
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	return b.publish(ctx, m)
}

// bury writes a marker, which expires after markerTTL, if the key is still at last. Otherwise it
// returns errSwapped.
func (b *bucket) bury(ctx context.Context, key string, last revision) (revision, error) {
	m := b.marker(key)
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	return b.publish(ctx, m)
}

func (b *bucket) release(ctx context.Context, key string, last revision) (revision, error) {
	m := b.message(key, nil)
	m.Header.Set("KV-Operation", "DEL")
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	return b.publish(ctx, m)
}

func (b *bucket) write(ctx context.Context, key string, value []byte) (revision, error) {
	return b.publish(ctx, b.message(key, value))
}

// remove replaces a key at any revision by a marker that expires after markerTTL.
func (b *bucket) remove(ctx context.Context, key string) (revision, error) {
	m := b.marker(key)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return b.publish(ctx, m)
}

func (b *bucket) marker(key string) *nats.Msg {
	m := b.message(key, nil)
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgTTLHeader, seconds(markerTTL))
	return m
}

func (b *bucket) message(key string, value []byte) *nats.Msg {
	m := nats.NewMsg(b.put + key)
	m.Data = value
	return m
}

func (b *bucket) publish(ctx context.Context, m *nats.Msg) (revision, error) {
	nc := b.js.Conn()
	if !nc.IsConnected() {
		// nats.go would buffer the message and send it at an unknown time.
		if nc.IsClosed() {
			return 0, nats.ErrConnectionClosed
		}
		return 0, nats.ErrDisconnected
	}
	ack, err := b.js.PublishMsg(ctx, m, jetstream.WithExpectStream(b.stream))
	switch {
	case hasCode(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return 0, errSwapped
	case err != nil:
		return 0, denied(nc, m.Subject, b.full(err))
	}
	return ack.Sequence, nil
}

// get asks the bucket's leader for a key.
func (b *bucket) get(ctx context.Context, key string) (entry, error) {
	m, err := stored(ctx, b.js, b.stream, map[string]string{"last_by_subj": b.stored + key})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return entry{}, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return entry{}, errNoBucket
	case err != nil:
		return entry{}, denied(b.js.Conn(), apiPrefix(b.js)+"STREAM.MSG.GET."+b.stream, err)
	}
	e := entry{rev: m.Sequence, live: true, value: m.Data}
	if len(m.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return entry{}, fmt.Errorf("the headers of the key are broken: %w", err)
		}
		e.expired = h.Get(jetstream.MarkerReasonHeader) == "MaxAge"
		e.live = h.Get("KV-Operation") == "" && h.Get(jetstream.MarkerReasonHeader) == ""
	}
	return e, nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }
