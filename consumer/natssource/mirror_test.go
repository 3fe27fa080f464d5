package natssource

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// mirrorRig is a stream "origin" with five messages of log.0, and a log that reads its mirror.
type mirrorRig struct {
	*logRig
}

func newMirrorRig(t testing.TB) mirrorRig {
	js := natstest.Start(t).JetStream(t)
	r := mirrorRig{&logRig{t: t, ctx: inTime(t), js: js, Stream: Stream{Name: "mirror", Filters: []string{"log.0", "log.1"}}}}
	must(t, second(js.CreateStream(r.ctx, jetstream.StreamConfig{Name: "origin", Subjects: []string{"log.*"}})))
	r.publish(0, numbered(1, 6)...)
	must(t, second(js.CreateStream(r.ctx, jetstream.StreamConfig{Name: r.Name, Mirror: &jetstream.StreamSource{Name: "origin"}})))
	r.upTo(5)
	r.log = r.open(js)
	return r
}

func (r mirrorRig) origin() jetstream.Stream {
	s, err := r.js.Stream(r.ctx, "origin")
	must(r.t, err)
	return s
}

// upTo waits until the mirror has got so far.
func (r mirrorRig) upTo(seq uint64) {
	poll(r.t, "the mirror has what its origin has, up to "+strconv.FormatUint(seq, 10), func() bool {
		info, err := r.stream().Info(r.ctx)
		must(r.t, err)
		return info.State.LastSeq >= seq
	})
}

// behind is as if the mirror had been cut off while something happened to its origin.
func (r mirrorRig) behind(meanwhile func()) {
	saved, err := natstest.TakeBackup(r.ctx, r.js.Conn(), r.Name)
	must(r.t, err)
	must(r.t, r.js.DeleteStream(r.ctx, r.Name))
	meanwhile()
	must(r.t, saved.Restore(r.ctx, r.js.Conn()))
}

func TestWhatTheOriginOfAMirrorHasDroppedIsNotPassedOver(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.behind(func() {
		r.publish(0, numbered(6, 11)...)
		must(t, r.origin().Purge(r.ctx, jetstream.WithPurgeSequence(9)))
	})
	r.publish(1, "other")
	r.upTo(11)
	r.log = r.open(r.js)
	g := r.read(r.fence(0, 1))
	wantMisfit(t, g.fails(), consumer.ErrOffsetExpired, 6, 9)
	g.values("1", "2", "3", "4", "5")
	r.read(r.fence(0, 9)).values("9", "10") // where an operator sets it
	// Some of them may have been of a partition that has nothing else there.
	wantMisfit(t, r.reader(1, 1, -1).skip(r.ctx, true), consumer.ErrOffsetExpired, 1, 11)
}

func TestWhatWasDeletedFromInsideTheOriginOfAMirrorIsPassedOver(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.behind(func() {
		last := r.publish(0, numbered(6, 11)...)
		must(t, r.origin().DeleteMsg(r.ctx, last-2))
	})
	r.upTo(10)
	r.log = r.open(r.js)
	all := []string{"1", "2", "3", "4", "5", "6", "7", "9", "10"}
	r.read(r.fence(0, 1)).values(all...)
	rd := r.reader(1, 1, -1)
	if err := rd.skip(r.ctx, true); err != nil || rd.at != 11 {
		t.Errorf("skipped to %d, %v; want 11", rd.at, err)
	}
	// It has been asked while it knew.
	must(t, r.origin().Purge(r.ctx))
	r.read(r.fence(0, 1)).values(all...)
	// Who has not asked does not know, where something is missing.
	r.log = r.open(r.js)
	r.read(r.fence(0, 9)).values("9", "10")
	g := r.read(r.fence(0, 1))
	wantMisfit(t, g.fails(), consumer.ErrOffsetExpired, 8, 9)
	g.values(all[:7]...)
	// Another partition has its messages in between, and lacks none of them.
	rd = r.reader(1, 9, -1)
	if err := rd.skip(r.ctx, true); err != nil || rd.at != 11 {
		t.Errorf("skipped to %d, %v; want 11", rd.at, err)
	}
}

func TestAMirrorWithoutGapsNeedsNoOrigin(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.publish(1, "other", "other")
	r.publish(0, "8")
	r.upTo(8)
	must(t, r.js.DeleteStream(r.ctx, "origin"))
	r.read(r.fence(0, 1)).values("1", "2", "3", "4", "5", "8")
}

func TestAnOriginThatCannotBeAskedIsNamed(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.behind(func() { must(t, r.origin().DeleteMsg(r.ctx, r.publish(0, "6", "7")-1)) })
	r.upTo(7)
	r.log = r.open(r.js)
	must(t, r.js.DeleteStream(r.ctx, "origin"))
	lost := func(says string) {
		t.Helper()
		info, err := r.log.look(r.ctx)
		must(t, err)
		gone, err := r.log.lost(r.ctx, info, span{6, 6})
		if gone || err == nil || !strings.Contains(err.Error(), `origin "origin"`) || !strings.Contains(err.Error(), says) || errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("%v, %v; want that it says %q", gone, err, says)
		}
	}
	lost("no such stream")
	must(t, second(r.js.CreateStream(r.ctx, jetstream.StreamConfig{Name: "origin", Subjects: []string{"log.*"}})))
	lost("ends below its mirror")
}

// A mirror of a mirror.
func TestTheGapsOfAChainOfMirrorsAreThoseOfEach(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.behind(func() {
		r.publish(0, numbered(6, 11)...)
		must(t, r.origin().Purge(r.ctx, jetstream.WithPurgeSequence(9)))
	})
	r.upTo(10)
	last := mirrorRig{&logRig{t: t, ctx: r.ctx, js: r.js, Stream: Stream{Name: "second", Filters: r.Filters}}}
	must(t, second(r.js.CreateStream(r.ctx, jetstream.StreamConfig{Name: last.Name, Mirror: &jetstream.StreamSource{Name: r.Name}})))
	last.upTo(10)
	last.log = last.open(r.js)
	wantMisfit(t, last.read(last.fence(0, 1)).fails(), consumer.ErrOffsetExpired, 6, 9)
}

// Nobody reads them meanwhile.
func TestTheGapsOfAMirrorAreAskedAboutWhileTheOriginKnows(t *testing.T) {
	t.Parallel()
	r := newMirrorRig(t)
	r.behind(func() { must(t, r.origin().DeleteMsg(r.ctx, r.publish(0, "6", "7")-1)) })
	r.upTo(7)
	r.log = r.open(r.js)
	ctx, stop := context.WithCancel(r.ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); r.log.watch(ctx) }()
	info, err := r.log.look(r.ctx)
	must(t, err)
	poll(t, "the origin was asked", func() bool { return r.log.mirror.explains(info, span{1, 7}) })
	stop()
	<-watched
	must(t, r.origin().Purge(r.ctx))
	r.read(r.fence(0, 1)).values("1", "2", "3", "4", "5", "7")
}

// One request of all partitions is under way, and is not answered.
func TestAPartitionWaitsForAMirrorsAnswerNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	l := &streamLog{mirror: mirrorGaps{asking: semaphore.NewWeighted(1)}}
	if !l.mirror.asking.TryAcquire(1) {
		t.Fatal("somebody asks already")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lacks(ctx, span{1, 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	l.mirror.explain(&jetstream.StreamInfo{}, span{1, 2})
	if !l.mirror.explains(&jetstream.StreamInfo{}, span{1, 2}) {
		t.Error("a gap that is explained is not")
	}
}
