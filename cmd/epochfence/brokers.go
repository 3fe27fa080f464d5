package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// broker is where logs are.
type broker interface {
	// extents says of each fence where its log begins and ends now.
	extents(ctx context.Context, fences []epoch.Fence) []extent

	// at is the position of the first message that was written then or later.
	at(ctx context.Context, f epoch.Fence, t time.Time) (epoch.Offset, error)

	// unfenced are partitions of a group's topic that have no fence, as far as the
	// broker knows which partitions there are.
	unfenced(ctx context.Context, group, topic string, fences []epoch.Fence) ([]epoch.Partition, error)

	// groupOf is what there is of a group beside its fences, as far as the broker knows of groups.
	groupOf(ctx context.Context, group string) (membership, error)

	close()
}

// extent is the log of a partition as it is now.
type extent struct {
	log, source string
	begin, end  epoch.Offset // end is that of the next message that could be read
	written     epoch.Offset // that of the next message that will be written: above end while transactions are open
	lag         int64        // messages that are to be applied
	committed   epoch.Offset // of a fence that nobody has claimed: what the group has committed; 0: nothing
	err         error
}

// brokers are those that are known so far.
type brokers struct{ kafka, nats broker }

func (b *brokers) close() {
	for _, one := range []broker{b.kafka, b.nats} {
		if one != nil {
			one.close()
		}
	}
}

// Where the log of a fence is.
const (
	inKafka     = "kafka"
	inNATS      = "nats"
	inNeither   = "neither"
	kafkaPrefix = "kafka:"
)

func whereIs(f epoch.Fence) string {
	switch {
	case strings.HasPrefix(f.Log, kafkaPrefix):
		return inKafka
	case isNATSLog(f.Log):
		return inNATS
	default:
		return inNeither
	}
}

var errNoBroker = errors.New("the log is neither Kafka's nor NATS's")

// brokerOf returns the broker of a fence's log.
func (a *app) brokerOf(f epoch.Fence) (broker, error) {
	var err error
	switch whereIs(f) {
	case inKafka:
		if a.flags.kafka == "" && a.flags.kafkaConfig == "" {
			return nil, errors.New("which Kafka? Say it with --kafka or EPOCHFENCE_KAFKA")
		}
		if a.brokers.kafka == nil {
			var k *kafkaBroker
			if k, err = openKafka(a.flags); err == nil {
				a.brokers.kafka = k
			}
		}
		return a.brokers.kafka, err
	case inNATS:
		if a.flags.nats == "" {
			return nil, errors.New("which NATS? Say it with --nats or EPOCHFENCE_NATS")
		}
		if a.brokers.nats == nil {
			var n *natsBroker
			if n, err = openNATS(a.flags); err == nil {
				a.brokers.nats = n
			}
		}
		return a.brokers.nats, secretive(err, a.flags.nats)
	default:
		return nil, fmt.Errorf("%s: %w: %q", f.Partition, errNoBroker, f.Log)
	}
}

// extents asks the brokers of all fences.
func (a *app) extents(ctx context.Context, fences []epoch.Fence) []extent {
	all := make([]extent, len(fences))
	places := map[string][]int{}
	for i, f := range fences {
		at := whereIs(f)
		places[at] = append(places[at], i)
	}
	for _, is := range places {
		var these []epoch.Fence
		for _, i := range is {
			these = append(these, fences[i])
		}
		b, err := a.brokerOf(these[0])
		var found []extent
		if err == nil {
			found = b.extents(ctx, these)
		}
		for n, i := range is {
			if err != nil {
				all[i] = extent{err: err}
			} else {
				all[i] = found[n]
			}
		}
	}
	return all
}

// extentOf is that of one fence.
func (a *app) extentOf(ctx context.Context, f epoch.Fence) (extent, error) {
	e := a.extents(ctx, []epoch.Fence{f})[0]
	return e, e.err
}

// differs reports whether the fence counts the offsets of another log than there is now, or
// leases from somebody else.
func (e extent) differs(f epoch.Fence) bool {
	return e.err == nil && (e.log != f.Log || e.source != "" && e.source != f.Source)
}
