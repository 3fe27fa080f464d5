package natssource

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// late makes the leader's clock be a little past the time at which the stream's
// first message should have expired.
func (r *logRig) late() {
	r.log.asking.ask = func(ctx context.Context) (*jetstream.StreamInfo, error) {
		info, err := r.log.request(ctx)
		if err != nil {
			return nil, err
		}
		late := *info
		late.TimeStamp = info.State.FirstTime.Add(info.Config.MaxAge + 250*time.Millisecond)
		return &late, nil
	}
}

func never(t testing.TB, js jetstream.JetStream, subject string) {
	m := nats.NewMsg(subject)
	m.Header.Set(jetstream.MsgTTLHeader, "never")
	must(t, second(js.PublishMsg(inTime(t), m)))
}

// The server expires messages some time after their age was reached, so that a
// busy stream always begins with some that are too old.
func TestAServerThatExpiresMessagesLateHasNotLostAny(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for _, c := range []struct {
		name string
		ttls bool
		// Of the message before the position: a group that starts at the latest, and one whose
		// last message is gone, know nothing.
		known bool
	}{
		{"a stream with a maximum age", false, false}, {"one whose messages may have ages of their own", true, false},
		{"the message before the position is known", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &logRig{t: t, ctx: inTime(t), js: js, Stream: Stream{Name: fmt.Sprintf("log%v%v", c.ttls, c.known), Filters: []string{"log.0", "log.1"}}}
			subject := fmt.Sprintf("%v%v", c.ttls, c.known)
			r.Filters = []string{subject + ".0", subject + ".1"}
			r.create(func(s *jetstream.StreamConfig) {
				s.Subjects, s.MaxAge, s.AllowMsgTTL = []string{subject + ".*"}, time.Hour, c.ttls
			})
			r.log = r.open(js)
			publish := func(n int) uint64 {
				ack, err := js.Publish(r.ctx, fmt.Sprint(subject, ".", n), []byte("x"))
				must(t, err)
				return ack.Sequence
			}
			publish(1)
			at := publish(1) + 1
			publish(1)
			ours := publish(0)
			last := publish(1)
			r.late()
			reader := func() *reader {
				rd := r.reader(0, at, -1)
				if c.known {
					must(t, rd.recognise(r.ctx))
				}
				return rd
			}
			good, err := reader().verify(r.ctx, []consumer.Message{{Offset: epoch.Offset(ours)}})
			if good != 1 || err != nil {
				t.Errorf("a gap of others: %d messages, %v", good, err)
			}
			rd := reader()
			if err := rd.skip(r.ctx, true); err != nil || rd.at != ours {
				t.Errorf("skipped to %d, %v; want %d", rd.at, err, ours)
			}
			rd = r.reader(0, ours+1, -1)
			if err := rd.skip(r.ctx, true); err != nil || rd.at != last+1 {
				t.Errorf("skipped to %d, %v; want %d", rd.at, err, last+1)
			}
		})
	}
}

// It stands before the position, and what comes after it is there.
func TestAMessageThatNeverExpiresDoesNotMakeLaterOnesLost(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) {
		c.MaxAge, c.AllowMsgTTL, c.Duplicates = 5*time.Second, true, time.Second
	})
	never(t, js, "log.1")
	r.publish(0, "gone")
	poll(t, "the message has expired", func() bool {
		info, err := r.stream().Info(r.ctx)
		must(t, err)
		return info.State.Msgs == 1 && info.State.FirstSeq == 1
	})
	at := r.publish(1, "other")
	g := r.read(r.fence(0, at))
	r.publish(1, "other")
	r.publish(0, "a")
	g.values("a")
}

// Nothing comes for it in all the time that messages are kept.
func TestAQuietPartitionIsNotPassedByTheAgeOfOthersMessages(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js, func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = 4*time.Second, time.Second })
	r.log.skipEvery = skipEvery
	if p := r.log.skipPause(); p > 2*time.Second {
		t.Errorf("it is looked after every %v, and messages are kept for 4 s", p)
	}
	first := r.publish(1, "other")
	g := r.read(r.fence(0, first+1))
	poll(t, "the stream's beginning has passed where the partition stood", func() bool {
		r.publish(1, "other")
		info, err := r.stream().Info(r.ctx)
		must(t, err)
		return info.State.FirstSeq > first+1
	})
	r.publish(0, "a")
	g.values("a")
}

// As fast as others are written to.
func TestAQuietPartitionKeepsUpWithAStreamThatLosesItsBeginningFast(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.skipEvery = time.Hour
	last := r.publish(1, numbered(0, 100)...)
	rd := r.reader(0, 1, -1)
	must(t, rd.check(r.ctx))
	if rd.pause >= time.Hour {
		t.Error("how fast the beginning moves is not looked at soon")
	}
	must(t, rd.skip(r.ctx, true))
	if rd.at != last+1 || rd.pause != time.Hour {
		t.Errorf("where nothing moves: at %d, the next time after %v", rd.at, rd.pause)
	}
	must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(51)))
	rd.looked = time.Now().Add(-10 * time.Second)
	must(t, rd.skip(r.ctx, true))
	// 50 in 10 s, and 50 are left.
	if rd.pause < time.Second || rd.pause > 20*time.Second {
		t.Errorf("where the beginning comes near: the next time after %v", rd.pause)
	}
	must(t, rd.skip(r.ctx, true))
	if rd.pause != time.Hour {
		t.Errorf("where it has stopped: the next time after %v", rd.pause)
	}
}
