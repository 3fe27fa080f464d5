package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file decides how long a tenure may rely on the group (R13). contact.go measures how long the
// group has been silent.

type lease struct {
	session   time.Duration
	heartbeat time.Duration
	rebalance time.Duration
	drain     time.Duration // limit for a revoked partition
}

// check sets l.drain. It returns an error if the timeouts leave no time for a batch (R13).
func (l *lease) check(drain time.Duration) error {
	if l.heartbeat <= 0 || l.session <= 0 || l.rebalance <= 0 {
		return fmt.Errorf("the heartbeat interval of %v, the session timeout of %v and the rebalance timeout of %v must be positive",
			l.heartbeat, l.session, l.rebalance)
	}
	if l.heartbeat > l.session/3 {
		return fmt.Errorf("the heartbeat interval of %v is more than a third of the session timeout of %v: "+
			"one lost heartbeat would cost the partitions; lower the one or raise the other", l.heartbeat, l.session)
	}
	if l.heartbeat > l.rebalance/3 {
		return fmt.Errorf("the heartbeat interval of %v is more than a third of the rebalance timeout of %v: "+
			"one lost heartbeat would cost the partitions in a rebalance; lower the one or raise the other", l.heartbeat, l.rebalance)
	}
	// A member learns of a rebalance from its next heartbeat. The group has been counting for up to
	// one interval then.
	most := l.rebalance*9/10 - l.heartbeat
	if drain > most {
		return fmt.Errorf("Options.DrainTimeout is %v, but with a rebalance timeout of %v and a heartbeat interval of %v "+
			"the group would take the partitions away after %v; lower the one or raise the other", drain, l.rebalance, l.heartbeat, most)
	}
	l.drain = drain
	if drain == 0 {
		l.drain = most
	}
	return nil
}

// patience returns how long the group keeps partitions for a silent member: until its session
// expires, or until a rebalance continues without the members that have not joined again.
func (l lease) patience() time.Duration { return min(l.session, l.rebalance) }

// silence returns the time without an acknowledged heartbeat after which tenures are cancelled. It
// is shorter than the group's patience, so that tenures end before the group assigns their
// partitions to another member.
func (l lease) silence() time.Duration { return l.patience() * 9 / 10 }

func (l lease) term() time.Duration { return min(l.silence(), l.drain) }

// nextGenLease returns the lease under KIP-848, where the broker sets the session timeout and the
// heartbeat interval. Reading them needs the permission to describe the group's configuration.
// Without it, or if the broker does not have them, the client's values apply. Its default of the
// heartbeat interval is 3 s, and the broker's is 5 s.
func (s *Source) nextGenLease(ctx context.Context) (lease, error) {
	l := s.set.classic
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType = kmsg.ConfigResourceTypeGroupConfig
	res.ResourceName = s.set.Group
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, s.reader)
	if err == nil && len(resp.Resources) == 1 {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err == nil {
		err = l.read(resp)
	}
	if err != nil {
		s.log.Warn("the broker does not tell the group's session timeout, so the client's is taken; where the broker's is shorter, a process that is cut off continues after the group has given its partitions away, and is refused only when it commits",
			"session_timeout", l.session, "heartbeat_interval", l.heartbeat, "err", err,
			"remedy", "allow this user DESCRIBE_CONFIGS on the group, or set kgo.SessionTimeout and kgo.HeartbeatInterval to what the broker has")
		return l, nil
	}
	if err := l.check(s.set.DrainTimeout); err != nil {
		return l, fmt.Errorf("kafkasource: group %q as the broker's consumer.heartbeat.interval.ms and consumer.session.timeout.ms and kgo.RebalanceTimeout have it: %w", s.set.Group, err)
	}
	return l, nil
}

// read sets the session timeout and heartbeat interval to the broker's, if the answer has both.
func (l *lease) read(resp *kmsg.DescribeConfigsResponse) error {
	now := *l
	now.session, now.heartbeat = 0, 0
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			switch c.Name {
			case "consumer.session.timeout.ms":
				now.session = millis(c.Value)
			case "consumer.heartbeat.interval.ms":
				now.heartbeat = millis(c.Value)
			}
		}
	}
	if now.session == 0 || now.heartbeat == 0 {
		return errors.New("its answer does not say")
	}
	*l = now
	return nil
}

func millis(v *string) time.Duration {
	if v == nil {
		return 0
	}
	ms, err := strconv.ParseInt(*v, 10, 32)
	if err != nil || ms < 0 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// client creates one of the two clients. The source's own options come last, so that they override.
func (s *Source) client(ctx context.Context, extra []kgo.Opt, ours ...kgo.Opt) (*kgo.Client, error) {
	opts := []kgo.Opt{kgo.ClientID(defaultClientID), kgo.FetchMaxWait(fetchWait)}
	opts = append(opts, s.set.Client...)
	opts = append(opts, extra...)
	opts = append(opts, kgo.WithContext(ctx))
	opts = append(opts, ours...)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafkasource: %w", err)
	}
	return cl, nil
}
