package e2e_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// small makes a source with the smallest buffer.
func small(c *kfake.Cluster, group string) func(*kafkasource.Options) {
	return func(o *kafkasource.Options) { o.Client, o.Group, o.BufferBytes = reach(c), group, 1<<20 }
}

// odd bytes: invalid UTF-8, NUL, an overlong encoding, half of a surrogate pair.
const odd = "a\xff\xfe\x00b\xc0\x80\xed\xa0\x80'\"\\"

func oddRecord() (*kgo.Record, effect) {
	r := &kgo.Record{
		Topic: topic, Key: []byte("key " + odd), Value: []byte("value " + odd),
		Headers: []kgo.RecordHeader{{Key: "header " + odd, Value: []byte(odd)}, {Key: "", Value: nil}, {Key: "header " + odd, Value: []byte{0}}},
	}
	var m consumer.Message
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, consumer.Header{Key: h.Key, Value: h.Value})
	}
	return r, effect{string(r.Key), string(r.Value), string(headerBytes(m))}
}

var errPoison = errors.New("poison: " + odd)

// poisoned is a handler that refuses the messages whose values have this
// prefix.
func poisoned[TX any](prefix string, handle consumer.Handler[TX]) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		if strings.HasPrefix(string(m.Value), prefix) && m.Offset == 2 {
			return consumer.Permanent(errPoison)
		}
		return handle(ctx, tx, m, e)
	}
}

func TestInvalidUTF8AndNULAreAppliedAndDeadLetteredUnharmed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, topic))
	record, want := oddRecord()
	again := *record // at offset 2 it is poison
	produce(t, reach(c), record, &kgo.Record{Topic: topic, Value: []byte("between")}, &again, &kgo.Record{Topic: topic, Value: []byte("after")})
	wantAll := []effect{want, {value: "between"}, {value: "after"}}

	t.Run("sqlsink", func(t *testing.T) {
		d := newSQLite(t)
		r := start(t, newSource(t, small(c, "on-sqlite")), d.sink, consumer.Each(poisoned("value", d.handle)).OnFailure(d.sink.DeadLetter))
		r.advancedTo(part("on-sqlite", topic), 4)
		r.stop()
		none[consumer.Halted](r)
		if got := d.applied(); !slices.Equal(got, wantAll) {
			t.Errorf("applied %q, want %q", got, wantAll)
		}
		// An error's text is for people: what text cannot hold is replaced.
		if got, cause := d.dead(); got != want || !strings.Contains(cause, "poison: a") {
			t.Errorf("put aside %q because of %q, want %q", got, cause, want)
		}
	})
	t.Run("pgsink", func(t *testing.T) {
		d := newPostgres(t).granted()
		r := start(t, newSource(t, small(c, "on-postgres")), d.sink, consumer.Each(poisoned("value", d.handle)).OnFailure(d.sink.DeadLetter))
		r.advancedTo(part("on-postgres", topic), 4)
		r.stop()
		none[consumer.Halted](r)
		if got := d.applied(); !slices.Equal(got, wantAll) {
			t.Errorf("applied %q, want %q", got, wantAll)
		}
		if got, cause := d.dead(); got != want || !strings.Contains(cause, "poison: a") {
			t.Errorf("put aside %q because of %q, want %q", got, cause, want)
		}
	})
}

// A handler that stores bytes as text is refused by PostgreSQL: by its name, and
// that message alone.
func TestInvalidUTF8InATextColumnIsThatMessagesErrorAlone(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t).granted()
	record, want := oddRecord()
	produce(t, reach(c), append(append(numbered(topic, 0, 5), record), numbered(topic, 5, 5)...)...)
	d.exec("create table texts (value text)")
	d.exec("grant insert on texts to " + d.role)
	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if _, err := tx.Exec(ctx, "insert into texts values ($1::text)", string(m.Value)); err != nil {
			return err
		}
		return d.handle(ctx, tx, m, e)
	}
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(handle).OnFailure(d.sink.DeadLetter))
	r.advancedTo(part(group, topic), 11)
	r.stop()
	wantValues(t, d.applied(), counted(10))
	if got, cause := d.dead(); got != want || !strings.Contains(cause, "invalid byte sequence") {
		t.Errorf("put aside %q because of %q, want %q", got, cause, want)
	}
}

func TestNamesWithQuotesAndOf249CharactersAreNamesLikeOthers(t *testing.T) {
	t.Parallel()
	longGroup := `it's "our" group; drop table effects -- ` + strings.Repeat("ü", 249)
	longGroup = string([]rune(longGroup)[:249])
	longTopic := strings.Repeat("Topic._-9", 28)[:249]
	c := newCluster(t, kfake.SeedTopics(1, longTopic))
	produce(t, reach(c), numbered(longTopic, 0, 20)...)
	named := func(suffix string) func(*kafkasource.Options) {
		return func(o *kafkasource.Options) {
			o.Client, o.Group, o.Topics = reach(c), longGroup+suffix, []string{longTopic}
		}
	}
	t.Run("sqlsink", func(t *testing.T) {
		d := newSQLite(t)
		r := start(t, newSource(t, named("")), d.sink, consumer.Each(d.handle))
		r.advancedTo(part(longGroup, longTopic), 20)
		r.stop()
		wantValues(t, d.applied(), counted(20))
	})
	t.Run("pgsink", func(t *testing.T) {
		d := newPostgres(t).granted()
		r := start(t, newSource(t, named("'")), d.sink, consumer.Each(d.handle))
		r.advancedTo(part(longGroup+"'", longTopic), 20)
		r.stop()
		wantValues(t, d.applied(), counted(20))
	})
}

func TestANameThatKafkaOrPostgresCannotHoldIsAnErrorThatSaysWhy(t *testing.T) {
	t.Parallel()
	source := func(with func(*kafkasource.Options)) error {
		o := kafkasource.Options{Group: group, Topics: []string{topic}}
		with(&o)
		_, err := kafkasource.New(o)
		return err
	}
	long := strings.Repeat("x", 250)
	wantError(t, source(func(o *kafkasource.Options) { o.Topics = []string{long} }), "kafkasource: Options.Topics", long, "249")
	wantError(t, source(func(o *kafkasource.Options) { o.Topics = []string{`or"ders`} }), "kafkasource: Options.Topics", `or\"ders`)
	wantError(t, source(func(o *kafkasource.Options) { o.Topics = []string{"^orders"} }), "kafkasource: Options.Topics", "^orders", "name the topics")
	wantError(t, source(func(o *kafkasource.Options) { o.Group = odd }), "kafkasource: Options.Group", "UTF-8")
	wantError(t, source(func(o *kafkasource.Options) { o.Group = strings.Repeat("x", 40_000) }), "kafkasource: Options.Group")

	// A group that Kafka takes and an index of PostgreSQL does not.
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t).granted()
	r := start(t, newSource(t, small(c, strings.Repeat("x", 2_100))), d.sink, consumer.Each(d.handle))
	r.reported(soonEnough, "pgsink: ", "orders", "the limit is")
}
