package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// This file refuses client options that the source sets itself. It leaves the values of all other
// options to kgo.

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
