package natssource

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/text/process"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the options of a source, and refuses those that make no sense before a server is
// asked. source.go refuses streams and buckets whose settings do not fit.

// Options configure a [Source]: which group reads which streams, and where its leases are.
type Options struct {
	// Group scopes the leases, and the fences in the sink. It is UTF-8 without NUL, of up to
	// 512 bytes. Required.
	Group string

	// JetStream comes from [jetstream.New], [jetstream.NewWithDomain] or
	// [jetstream.NewWithAPIPrefix]. The caller owns its connection: the source does not close it
	// and sets no callbacks. Use [nats.MaxReconnects] of -1, because Run returns an error when the
	// connection is closed. With [nats.RetryOnFailedConnect], Run waits for a server that cannot
	// be reached yet; without it, [nats.Connect] fails at once. Required.
	JetStream jetstream.JetStream

	// Streams are the streams to read, at least one, each once.
	Streams []Stream

	// Bucket is the key-value bucket of the leases. Several groups may share a bucket. Run creates
	// it if it is missing, in files and with the replicas of the first stream. Set it if the
	// process may use only a bucket of another name. Defaults to "epochfence".
	Bucket string

	// LeaseTTL is the time that a lease lasts after its holder's last renewal, from 1 s to 1 h. All
	// processes of a group should use the same value. Lower it so that another process takes over
	// sooner. Raise it if one message needs longer: consumer.Options.BatchTimeout may be at most
	// 60 % of it. Defaults to 15 s.
	LeaseTTL time.Duration

	// BufferBytes limits the messages that are read and not yet applied, over all partitions, in
	// bytes. Each partition may exceed its part, see the package's comment on memory. The minimum
	// is 1 MiB. Raise it if many partitions have large messages. Lower it if the process has little
	// memory. Defaults to 64 MiB.
	BufferBytes int

	// StartTimeout limits how long Run waits for a JetStream that cannot be reached. The wait is
	// logged after 1 s and then every 10 s. Refused credentials and missing permissions end Run at
	// once. Raise it if the program starts long before its server. Defaults to 30 s.
	StartTimeout time.Duration

	// Name names this process in leases and fences, before the host's name and the process id. It
	// need not be unique. Set it if host name and process id do not identify the process. Optional.
	Name string

	given string // Name as it was given

	// Logger receives the source's log lines. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Stream names a stream and its partitions: by Filters, by Transform, or, with neither, the whole
// stream as partition 0.
type Stream struct {
	// Name is the stream's name, which is the topic of its messages.
	Name string

	// Filters are the subjects of the partitions: partition n has the messages whose stored
	// subject matches filter n. No subject may match two filters.
	Filters []string

	// Transform is the stream's subject transform, whose destination has partition(N, ...). See
	// [EnsureTransform].
	Transform *Transform

	// Durable names the durable consumer that has consumed the stream before. A partition that is
	// claimed for the first time continues after the messages that it has acknowledged without a
	// gap ([consumer.StartCommitted]). If it is named and does not exist, or lacks messages of the
	// partition, the partition is not claimed. The source does not change the consumer. Defaults to
	// the consumer with the group's name, if that consumer lacks no message of the partition.
	Durable string
}

// Transform is a subject transform of a stream, as the server writes it, such as
// from "payments.*" to "payments.{{partition(16,1)}}.{{wildcard(1)}}".
type Transform struct {
	Source      string
	Destination string
}

const (
	defaultBucket = "epochfence"
	defaultTTL    = 15 * time.Second
	leastTTL      = time.Second
	mostWait      = time.Hour

	defaultBuffer = 64 << 20
	leastBuffer   = 1 << 20
	mostBuffer    = min(1<<40, math.MaxInt/2) // an int has 32 bits on some platforms

	mostName = 512 // bytes
)

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

func (o Options) withDefaults() (Options, error) {
	if o.Bucket == "" {
		o.Bucket = defaultBucket
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = defaultTTL
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = defaultBuffer
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = waits.Timeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.check(); err != nil {
		return Options{}, err
	}
	o.given, o.Name = o.Name, process.Named(o.Name)
	o.Logger = o.Logger.With("group", o.Group)
	return o, nil
}

func (o Options) check() error {
	if o.Group == "" {
		return errors.New("natssource: Options.Group is empty")
	}
	for _, name := range []struct{ option, v string }{{"Group", o.Group}, {"Name", o.Name}} {
		if !utf8.ValidString(name.v) || strings.ContainsRune(name.v, 0) || len(name.v) > mostName {
			return fmt.Errorf("natssource: Options.%s is %q; want valid UTF-8 without NUL, up to %d bytes", name.option, inert.Short(name.v), mostName)
		}
	}
	if o.JetStream == nil {
		return errors.New("natssource: Options.JetStream is nil; make one with jetstream.New(conn)")
	}
	if len(o.Bucket) > mostName || !bucketName.MatchString(o.Bucket) {
		return fmt.Errorf("natssource: Options.Bucket is %q, which is no name of a bucket: want letters, digits, '-' and '_'", inert.Short(o.Bucket))
	}
	if o.LeaseTTL < leastTTL || o.LeaseTTL > mostWait {
		return fmt.Errorf("natssource: Options.LeaseTTL is %v; want 0 for the default of %v, or %v to %v",
			o.LeaseTTL, defaultTTL, leastTTL, mostWait)
	}
	if o.BufferBytes < leastBuffer || o.BufferBytes > mostBuffer {
		return fmt.Errorf("natssource: Options.BufferBytes is %d; want 0 for the default of %d, or %d to %d", o.BufferBytes, defaultBuffer, leastBuffer, mostBuffer)
	}
	if o.StartTimeout < 0 || o.StartTimeout > mostWait {
		return fmt.Errorf("natssource: Options.StartTimeout is %v; want 0 for the default of 30 s, or up to %v", o.StartTimeout, mostWait)
	}
	return checkStreams(o.Streams)
}

func checkStreams(streams []Stream) error {
	if len(streams) == 0 {
		return errors.New("natssource: Options.Streams is empty")
	}
	seen := map[string]bool{}
	for _, s := range streams {
		switch {
		case s.Name == "" || len(s.Name) > 255 || strings.ContainsAny(s.Name, ".*>/\\ \t\r\n\f\x00"):
			return fmt.Errorf("natssource: Options.Streams holds %q, which is no name of a stream: want 1 to 255 characters without '.', '*', '>', slashes and white space", inert.Short(s.Name))
		case seen[s.Name]:
			return fmt.Errorf("natssource: Options.Streams names %q twice", s.Name)
		case s.Durable != "" && !consumerName.MatchString(s.Durable):
			return fmt.Errorf("natssource: stream %q: Durable is %q, which is no name of a consumer", s.Name, inert.Short(s.Durable))
		case len(s.Filters) > 0 && s.Transform != nil:
			return fmt.Errorf("natssource: stream %q has Filters and a Transform; partitions come from one of them", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

// PermissionError is returned when the connection's user lacks a permission that the source needs.
// Its field Subject is the subject that the user may not publish or subscribe to.
type PermissionError = natsstore.PermissionError

var errOtherStream = errors.New("the stream was deleted and created again")
