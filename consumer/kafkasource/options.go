package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the options of a source, and refuses those that make no sense before a broker is
// asked. It refuses client options that the source sets itself, and leaves the
// values of all others to kgo. reach.go refuses what the cluster cannot do.

// Options configure a [Source]: which group reads which topics, and how to reach the cluster.
type Options struct {
	// Group is the consumer group. It scopes the leases, and the fences in the sink. Required.
	Group string

	// Topics are the names of the topics to read, at least one. Patterns are not supported: a
	// topic that is created later is not read until it is added here.
	Topics []string

	// Client has the options of the Kafka clients: seed brokers, TLS, SASL, client id, rack,
	// logger, [kgo.InstanceID], [kgo.Balancers], [kgo.ServerSideBalancer] (KIP-848),
	// [kgo.SessionTimeout], [kgo.HeartbeatInterval], [kgo.RebalanceTimeout]. The source makes two
	// clients with them: the member of the group, and one that reads. New refuses options that
	// would do the source's work: group and topics, autocommit, start and reset offsets, fetch
	// sizes, callbacks.
	Client []kgo.Opt

	// GroupClient and ReadClient are further options for one of the two clients. Use them for a
	// hook that can serve only one client, such as a hook that registers metrics under a fixed
	// name. New returns an error if such a hook is in Client. To check options, New creates both
	// clients and closes them without connecting.
	GroupClient, ReadClient []kgo.Opt

	// BufferBytes limits the memory of messages that are fetched and not yet applied, over all
	// partitions, in bytes. It includes what the clients buffer; see the package documentation. The
	// minimum is 1 MiB. Raise it if many partitions have large messages, or if brokers are far
	// away. Lower it if the process has little memory. Defaults to 32 MiB.
	BufferBytes int

	// StartTimeout limits how long Run waits for a cluster that cannot be reached. Run logs the
	// wait after 1 s and then every 10 s. Refused credentials end Run at once. Raise it if the
	// program starts long before its cluster. Defaults to 30 s.
	StartTimeout time.Duration

	// DrainTimeout limits how long a revoked partition may take to finish its transaction. After
	// that its tenure is cancelled. The maximum is 0.9 × [kgo.RebalanceTimeout] −
	// [kgo.HeartbeatInterval]. Lower it so that other members wait less for a revoked partition.
	// [consumer.Tenure.Term] is never longer. Defaults to the maximum, 51 s with kgo's defaults.
	DrainTimeout time.Duration

	// MirrorInterval is the time between commits of positions to the group, for tools that show
	// lag. Raise it for fewer commits of large groups. Lower it for tools that need a fresh lag.
	// Defaults to 5 s.
	MirrorInterval time.Duration

	// Logger receives the source's log lines. The lines of the Kafka clients go to
	// [kgo.WithLogger]. Defaults to [slog.Default].
	Logger *slog.Logger
}

const (
	defaultBuffer = 32 << 20
	leastBuffer   = 1 << 20
	mostBuffer    = min(1<<40, math.MaxInt/2) // an int has 32 bits on some platforms
	mostWait      = time.Hour

	// fetchWait is the default of FetchMaxWait. kgo has one fetch under way for each broker, and a
	// partition that is added or resumed meanwhile waits for it to return.
	fetchWait = 250 * time.Millisecond
)

const defaultClientID = "epochfence"

// settings are the Options with defaults, and values from the clients' options.
type settings struct {
	Options
	clientID string
	instance *string // of a static member
	seeds    []string
	nextGen  bool // KIP-848 was requested
	values   contextValues
	classic  lease // from the options; under KIP-848 the broker decides
	readMax  int32 // the largest response that the reading client accepts, in bytes
	recycle  bool  // records may be reused
}

func (o Options) resolve() (settings, error) {
	if err := o.check(); err != nil {
		return settings{}, err
	}
	group, read, err := probes(o)
	if err != nil {
		return settings{}, err
	}
	s := settings{
		Options:  o,
		clientID: group.OptValue(kgo.ClientID).(string),
		seeds:    group.OptValue(kgo.SeedBrokers).([]string),
		nextGen:  group.OptValue(kgo.ServerSideBalancer).(bool),
		readMax:  read.OptValue(kgo.BrokerMaxReadBytes).(int32),
		recycle:  mayRecycle(read),
	}
	for _, seed := range s.seeds {
		if seed == "" || strings.HasPrefix(seed, ":") {
			return settings{}, fmt.Errorf("kafkasource: Options.Client: the address %q of kgo.SeedBrokers has no host; is the variable set that it comes from?", seed)
		}
		if strings.Contains(seed, "@") { // not printed: it may have a password
			return settings{}, errors.New("kafkasource: Options.Client: an address of kgo.SeedBrokers has a user; want host:port, and the user in kgo.SASL")
		}
	}
	if id := group.OptValues(kgo.InstanceID); id[1].(bool) {
		instance := id[0].(string)
		s.instance = &instance
	}
	s.values = valuesOf(group.OptValue(kgo.WithContext))
	s.nextGen = s.nextGen || s.values.optsInToNextGen()
	s.classic = lease{
		session:   group.OptValue(kgo.SessionTimeout).(time.Duration),
		heartbeat: group.OptValue(kgo.HeartbeatInterval).(time.Duration),
		rebalance: group.OptValue(kgo.RebalanceTimeout).(time.Duration),
	}
	if err := s.classic.check(o.DrainTimeout); err != nil {
		return settings{}, fmt.Errorf("kafkasource: %w (kgo.HeartbeatInterval, kgo.SessionTimeout and kgo.RebalanceTimeout set them)", err)
	}
	if s.BufferBytes == 0 {
		s.BufferBytes = defaultBuffer
	}
	if s.StartTimeout == 0 {
		s.StartTimeout = waits.Timeout
	}
	if s.MirrorInterval == 0 {
		s.MirrorInterval = 5 * time.Second
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	s.Logger = s.Logger.With("group", o.Group)
	return s, nil
}

func (o Options) check() error {
	if o.Group == "" {
		return errors.New("kafkasource: Options.Group is empty")
	}
	if !utf8.ValidString(o.Group) || strings.ContainsRune(o.Group, 0) || len(o.Group) > 1<<15-1 {
		return fmt.Errorf("kafkasource: Options.Group %q is not a group name: want valid UTF-8 without NUL, up to %d bytes", inert.Short(o.Group), 1<<15-1)
	}
	if len(o.Topics) == 0 {
		return errors.New("kafkasource: Options.Topics is empty")
	}
	seen := make(map[string]bool, len(o.Topics))
	for _, t := range o.Topics {
		if err := checkTopic(t); err != nil {
			return err
		}
		if seen[t] {
			return fmt.Errorf("kafkasource: Options.Topics names %q twice", t)
		}
		seen[t] = true
	}
	if o.BufferBytes != 0 && (o.BufferBytes < leastBuffer || o.BufferBytes > mostBuffer) {
		return fmt.Errorf("kafkasource: Options.BufferBytes is %d; want 0 for the default of %d, or %d to %d", o.BufferBytes, defaultBuffer, leastBuffer, mostBuffer)
	}
	for _, w := range []struct {
		name string
		v    time.Duration
	}{{"StartTimeout", o.StartTimeout}, {"DrainTimeout", o.DrainTimeout}, {"MirrorInterval", o.MirrorInterval}} {
		if w.v < 0 || w.v > mostWait {
			return fmt.Errorf("kafkasource: Options.%s is %v; want 0 for the default, or up to %v", w.name, w.v, mostWait)
		}
	}
	return nil
}

// checkTopic applies Kafka's rule for topic names, so that a pattern or a mistyped name is not
// reported as a missing topic.
func checkTopic(t string) error {
	if strings.HasPrefix(t, "^") {
		return fmt.Errorf("kafkasource: Options.Topics holds the pattern %q: a topic that begins to match later would start at its earliest message "+
			"or not at all, depending on when it was seen; name the topics", inert.Short(t))
	}
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	odd := strings.IndexFunc(t, func(r rune) bool { return !legal(r) })
	if t == "" || t == "." || t == ".." || len(t) > 249 || odd >= 0 {
		return fmt.Errorf("kafkasource: Options.Topics holds %q, which Kafka does not allow as a name: want 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", inert.Short(t))
	}
	return nil
}

// leastFetchVersion is the first version of Fetch that names a topic by its id (KIP-516, Kafka
// 3.1). With an older version, a topic that was deleted and created again cannot be recognised.
const leastFetchVersion = 13

// probes creates the two clients with only the caller's options, to check these. The clients do not
// connect, because a client without topics sends no request. The first stays open while the second
// is created, as in Run.
func probes(o Options) (group, read *kgo.Client, err error) {
	if group, err = probe(o.Client, o.GroupClient); err != nil {
		return nil, nil, err
	}
	defer group.Close()
	if read, err = probe(o.Client, o.ReadClient); err != nil {
		return nil, nil, err
	}
	read.Close()
	return group, read, nil
}

func probe(parts ...[]kgo.Opt) (cl *kgo.Client, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("kafkasource: a hook in Options.Client panics: %v; the source makes two clients with these options: "+
				"put a hook that can serve only one client, such as one that registers metrics, "+
				"into Options.GroupClient, and another one into Options.ReadClient", p)
		}
	}()
	opts := slices.Concat(parts...)
	cl, err = kgo.NewClient(slices.Concat([]kgo.Opt{kgo.ClientID(defaultClientID)}, opts)...)
	if err != nil {
		if kgo.ValidateOpts(slices.Concat([]kgo.Opt{kgo.ConsumerGroup("group")}, opts)...) == nil {
			return nil, fmt.Errorf("kafkasource: Options.Client has autocommit options or assignment callbacks; "+
				"leave them out, the source commits and takes partitions by itself (%w)", err)
		}
		return nil, fmt.Errorf("kafkasource: Options.Client: %w", err)
	}
	if err := clash(cl); err != nil {
		cl.Close()
		return nil, err
	}
	return cl, nil
}

// clash returns an error that names the first option that the source sets itself. It cannot
// distinguish a chosen isolation level from the default, so the source overrides it silently with
// read committed.
func clash(cl *kgo.Client) error {
	plain, err := kgo.NewClient()
	if err != nil {
		return fmt.Errorf("kafkasource: %w", err)
	}
	plain.Close()
	for _, o := range []struct {
		name string
		why  string
	}{
		{"ConsumeRegex", "patterns are not supported; name the topics in Options.Topics"},
		{"ConsumerGroup", "use Options.Group"},
		{"ShareGroup", "a share group has no positions to fence"},
		{"ConsumeTopics", "use Options.Topics"},
		{"ConsumePartitions", "the group assigns the partitions"},
		{"ConsumeResetOffset", "the source never resets a position; a position that the log does not hold halts its partition"},
		{"ConsumeStartOffset", "the sink's position is where reading starts; see consumer.Options.Start"},
		{"FetchMaxBytes", "use Options.BufferBytes"},
		{"FetchMaxPartitionBytes", "use Options.BufferBytes"},
		{"KeepRetryableFetchErrors", "the client retries what can be retried"},
		{"AdjustFetchOffsetsFn", "the group's committed offsets are not read"},
		{"OnOffsetsFetched", "the group's committed offsets are not read"},
		{"OnPartitionsCallbackBlocked", "the source polls by itself"},
		{"BlockRebalanceOnPoll", "the source drains partitions by itself"},
		{"GroupProtocol", "the source joins as a consumer"},
		{"TransactionalID", "the source does not produce"},
	} {
		if !same(cl.OptValue(o.name), plain.OptValue(o.name)) {
			return fmt.Errorf("kafkasource: Options.Client must not hold kgo.%s: %s", o.name, o.why)
		}
	}
	if v, ok := cl.OptValue(kgo.MaxVersions).(*kversion.Versions); ok && v != nil {
		if fetch, ok := v.LookupMaxKeyVersion(1); !ok || fetch < leastFetchVersion {
			return errors.New("kafkasource: Options.Client limits kgo.MaxVersions below Kafka 3.1, which fetches by topic id: " +
				"without it a topic that was deleted and created again cannot be told from the old one")
		}
	}
	return nil
}

// same compares two values of one option. It compares functions only by whether they are set.
func same(a, b any) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if !va.IsValid() || !vb.IsValid() || va.Kind() != reflect.Func {
		return reflect.DeepEqual(a, b) || empty(va) && empty(vb)
	}
	return va.IsNil() == vb.IsNil()
}

func empty(v reflect.Value) bool {
	return !v.IsValid() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0
}

// contextValues are the values of the context in the caller's options, without its end: the source
// ends its clients itself.
type contextValues struct{ context.Context }

func valuesOf(given any) contextValues {
	ctx, ok := given.(context.Context)
	if !ok || ctx == nil {
		ctx = context.Background()
	}
	return contextValues{context.WithoutCancel(ctx)}
}

// optsInToNextGen reports the older opt-in to KIP-848, which kgo still accepts.
func (c contextValues) optsInToNextGen() bool {
	return c.Value("opt_in_kafka_next_gen_balancer_beta") != nil
}
