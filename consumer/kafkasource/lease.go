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

// lease is how long the group lets a member be silent, and how long it waits
// for one in a rebalance.
type lease struct {
	session   time.Duration
	heartbeat time.Duration
	rebalance time.Duration
	drain     time.Duration // how long a partition that is revoked may take
}

// check fills in drain and refuses what leaves no room for a batch (R13).
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
	// A member learns of a rebalance from its next heartbeat, by when the
	// group has been counting for up to an interval.
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

// patience is how long the group keeps partitions for a member that has fallen
// silent: until its session has expired, or, where a rebalance has begun, until that
// continues without those who have not joined again.
func (l lease) patience() time.Duration { return min(l.session, l.rebalance) }

// silence is how long no heartbeat may have been acknowledged before the
// tenures are cancelled. It is short of the group's patience, so that they are over
// before the group gives their partitions to somebody else.
func (l lease) silence() time.Duration { return l.patience() * 9 / 10 }

// term is what a tenure reports: see [consumer.Tenure].
func (l lease) term() time.Duration { return min(l.silence(), l.drain) }

// nextGenLease is the lease under KIP-848, where the broker says how long a
// session lasts and how often to heartbeat. It takes the permission to
// describe the group's configuration; without it, or where the broker does not
// say, the client's own values stand, whose defaults are the broker's defaults.
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
		return l, fmt.Errorf("kafkasource: group %q as the broker configures it: %w", s.set.Group, err)
	}
	return l, nil
}

// read takes over what the broker says, if it says both.
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

// millis is zero where v is no number of milliseconds.
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

// client makes one of the two clients. What the source decides comes last, so
// that it overrides.
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
