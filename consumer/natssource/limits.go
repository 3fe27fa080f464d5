package natssource

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file refuses streams whose limits on consumers leave too little room for the readers, and
// explains the server's refusals.

const (
	// forgotten is how long the server keeps a consumer that requests nothing, because its process
	// has died or its handler is slow. A slow handler then gets a new consumer.
	forgotten = time.Minute

	// soonForgotten is the least useful value of forgotten: it outlasts a lost request, and the
	// time between two requests if handlers are quick.
	soonForgotten = 5 * time.Second
)

func (l *streamLog) note(info *jetstream.StreamInfo) {
	keeps := forgotten
	if limit := info.Config.ConsumerLimits.InactiveThreshold; limit > 0 {
		keeps = min(keeps, limit)
	}
	l.keeps.Store(int64(keeps))
}

func (l *streamLog) kept() time.Duration { return time.Duration(l.keeps.Load()) }

// checkLimits refuses a stream whose limits let readers of that many partitions work only for a
// while, or only now and then.
func checkLimits(c jetstream.StreamConfig, partitions int) error {
	if limit := c.ConsumerLimits.InactiveThreshold; limit > 0 && limit < soonForgotten {
		return fmt.Errorf("its ConsumerLimits delete a consumer after %v without a request, which is too soon for a reader: "+
			"update the stream with an InactiveThreshold of %v or more, or without one", limit, soonForgotten)
	}
	// The consumers of a killed member count until the server forgets them.
	if most, need := c.MaxConsumers, 2*partitions; most > 0 && most < need {
		return fmt.Errorf("it allows %d consumers, and its %d partitions need up to %d: one each, and one more each for the consumer that a killed member has left, until the server forgets it; "+
			"update the stream with MaxConsumers of at least %d plus the number of other consumers (a server that cannot change it needs a new stream)", most, partitions, need, need)
	}
	return nil
}

func (l *streamLog) explainLimit(err error) error {
	if jsapi.HasCode(err, jetstream.JSErrCodeMaximumConsumersLimit) {
		return fmt.Errorf("the stream or the account allows no more consumers (MaxConsumers); those of members that were killed go after %v: %w", l.kept(), err)
	}
	return err
}
