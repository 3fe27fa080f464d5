package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
)

// This file decides which broker has the log of a fence, and what has to be known of a log.
// kafka.go and nats.go ask the servers.

type broker interface {
	// extents returns the present log of each fence's partition.
	extents(ctx context.Context, fences []epoch.Fence) []extent

	// at returns the offset of the first message written at t or later.
	at(ctx context.Context, f epoch.Fence, t time.Time) (epoch.Offset, error)

	// unfenced returns the known partitions of a group's topic that have no fence.
	unfenced(ctx context.Context, group, topic string, fences []epoch.Fence) ([]epoch.Partition, error)

	// groupOf returns a group's members and committed partitions, as far as the broker knows them.
	groupOf(ctx context.Context, group string) (membership, error)

	close()
}

type extent struct {
	log, source string
	begin, end  epoch.Offset     // end is the offset of the next message that could be read
	written     epoch.Offset     // the offset of the next message to be written: above end while transactions are open
	lag         int64            // messages to be applied
	committed   epoch.Offset     // for an unclaimed fence: the offset that the group has committed; 0 if none
	published   *published       // under which claim the group has committed; nil if not known
	unread      error            // why the group's committed offsets are not known
	open        *openTransaction // if written is above end
	err         error
}

// published is the claim under which a process of the group has published its position.
type published struct {
	epoch epoch.Epoch
	claim epoch.ClaimID
	next  epoch.Offset
}

// openTransaction is what holds back the end of a log.
type openTransaction struct {
	Offsets int64      `json:"offsets"`                     // from the end to what was written
	IDs     []string   `json:"transactional_ids,omitempty"` // of those that are open; none if Kafka does not say
	Since   *time.Time `json:"since"`                       // the oldest one is open; null if Kafka does not say
}

func (o *openTransaction) String() string {
	s := count(o.Offsets, "offset") + " beyond END can be read only when "
	if len(o.IDs) == 0 {
		s += "a producer's open transaction has ended"
	} else {
		s += fmt.Sprintf("the open transaction of producer %q has ended", strings.Join(o.IDs, `", "`))
	}
	if o.Since != nil {
		s += "; it is open since " + stamp(*o.Since)
	}
	return s
}

type brokers struct{ kafka, nats broker }

func (b *brokers) close() {
	for _, one := range []broker{b.kafka, b.nats} {
		if one != nil {
			one.close()
		}
	}
}

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
		return a.brokers.nats, secret.Error(err, a.flags.nats)
	default:
		return nil, fmt.Errorf("%s: %w: %q", f.Partition, errNoBroker, f.Log)
	}
}

func (a *app) extents(ctx context.Context, fences []epoch.Fence) []extent {
	all := make([]extent, len(fences))
	places := map[string][]int{}
	for i, f := range fences {
		if !hasLog(f) {
			all[i].err = errors.New("locks and jobs have no log")
			continue
		}
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

func (a *app) extentOf(ctx context.Context, f epoch.Fence) (extent, error) {
	e := a.extents(ctx, []epoch.Fence{f})[0]
	return e, e.err
}

// differs reports whether the fence counts the offsets of a log, or leases from a source, other
// than the present one.
func (e extent) differs(f epoch.Fence) bool {
	return e.err == nil && (e.log != f.Log || e.source != "" && e.source != f.Source)
}
