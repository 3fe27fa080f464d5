package kafkasource

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// fetcher drives the reading client. Its loop is the only one that tells the
// client what to read and the only one that polls, by turns: so after a
// partition was removed, no poll can bring what was fetched for it before.
//
// Reading has a client apart from the member of the group, because kgo as a
// group member begins where the group has committed, drops what is buffered
// for all partitions when one is set to an offset, and checks for truncation
// (KIP-320) only later. Added to a direct consumer, a partition starts at the
// sink's position, after that was checked against its leader epoch, and nothing
// else is disturbed.
type fetcher struct {
	client *kgo.Client
	budget *budget
	log    *slog.Logger

	reading atomic.Int32  // how many feeds there are
	room    chan struct{} // holds a token when something was taken from a feed

	mu      sync.Mutex
	orders  []order
	interim context.CancelFunc // ends the poll under way

	// The rest belongs to the loop.
	feeds  map[topicPartition]*feed
	hungry int                 // how many of them the latest messages were for
	ids    map[string][16]byte // the topic ids the client has adopted
}

// order is something to do between two polls.
type order struct {
	what orderKind
	feed *feed
}

type orderKind int

const (
	open orderKind = iota
	shut
	resume
)

func newFetcher(cl *kgo.Client, b *budget, log *slog.Logger) *fetcher {
	return &fetcher{client: cl, budget: b, log: log, room: make(chan struct{}, 1), feeds: map[topicPartition]*feed{}, ids: map[string][16]byte{}}
}

// order has something done before the next poll. It does not wait for it.
func (f *fetcher) order(what orderKind, fd *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, order{what, fd})
	if f.interim != nil {
		f.interim()
	}
}

// run polls until ctx ends or the client is closed.
func (f *fetcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()
		orders := f.orders
		f.orders = nil
		poll, cancel := context.WithCancel(ctx)
		f.interim = cancel
		f.mu.Unlock()

		f.follow(orders)
		fetches := f.client.PollFetches(poll)
		cancel()
		if fetches.IsClientClosed() {
			return
		}
		f.hold(ctx, f.distribute(fetches))
	}
}

// taken says that something was taken from a feed.
func (f *fetcher) taken() {
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// follow carries out orders, all of them in one go: each change to what a
// client reads costs it the fetches under way.
func (f *fetcher) follow(orders []order) {
	remove, unpause := map[string][]int32{}, map[string][]int32{}
	opened := map[topicPartition]*feed{}
	for _, o := range orders {
		p := o.feed.topicPartition
		current := f.feeds[p] == o.feed
		switch {
		case o.what == open && !o.feed.shut:
			f.feeds[p], opened[p] = o.feed, o.feed
		case o.what == resume && current:
			unpause[p.topic] = append(unpause[p.topic], p.number)
		case o.what == shut && current:
			o.feed.shut = true // it may be about to be opened again
			delete(f.feeds, p)
			if opened[p] == nil {
				remove[p.topic] = append(remove[p.topic], p.number)
				unpause[p.topic] = append(unpause[p.topic], p.number)
			}
			delete(opened, p)
		}
	}
	f.reading.Store(int32(len(f.feeds)))
	f.resize()
	if len(remove) > 0 {
		f.client.RemoveConsumePartitions(remove)
	}
	if len(unpause) > 0 {
		f.client.ResumeFetchPartitions(unpause)
	}
	if len(opened) > 0 {
		f.add(opened)
	}
}

// add starts to read the partitions of feeds.
func (f *fetcher) add(feeds map[topicPartition]*feed) {
	add := map[string]map[int32]kgo.Offset{}
	for p, fd := range feeds {
		if id, ok := f.ids[p.topic]; ok && id != fd.id {
			f.renew(p.topic, fd.id)
		}
		f.ids[p.topic] = fd.id
		if add[p.topic] == nil {
			add[p.topic] = map[int32]kgo.Offset{}
		}
		add[p.topic][p.number] = fd.at()
	}
	f.client.AddConsumePartitions(add)
}

// renew has the client forget a topic that was deleted and created again: it
// keeps to the id it saw first. Who still reads under the old id hears of it.
func (f *fetcher) renew(topic string, id [16]byte) {
	for p, fd := range f.feeds {
		if p.topic == topic && fd.id != id {
			fd.fail(errOtherTopic, false)
		}
	}
	f.client.PurgeTopicsFromConsuming(topic)
}

// resize adapts the sizes of fetches to how much there is room for.
func (f *fetcher) resize() {
	if s, changed := f.budget.sizes(len(f.feeds), f.hungry, len(f.client.DiscoveredBrokers()), f.spare()); changed {
		f.client.UpdateFetchMaxBytes(s.fetch, s.partition)
	}
}

// distribute hands what a poll brought to the feeds, and returns those that got some.
// It stops those that have failed: a partition that answers with an error would otherwise
// be asked again at once, and again. kgo itself waits only if all partitions of
// a broker have failed, which is why it leaves to us also those errors that pass
// by themselves (KeepRetryableFetchErrors).
func (f *fetcher) distribute(fetches kgo.Fetches) (fed []*feed) {
	stop := stops{map[string][]int32{}, map[string][]int32{}}
	for _, fetch := range fetches {
		records := count(fetch)
		for i := range fetch.Topics {
			topic := &fetch.Topics[i]
			for j := range topic.Partitions {
				part := &topic.Partitions[j]
				if part.Partition < 0 { // about the whole topic, or about nothing in particular
					f.general(topic.Topic, part.Err, stop)
					continue
				}
				fd := f.feeds[topicPartition{topic.Topic, part.Partition}]
				if fd == nil {
					continue
				}
				if err := deliver(fd, topic, part, len(part.Records) < records/8); err != nil {
					f.trouble(fd, err, stop)
				} else {
					fed = append(fed, fd)
				}
			}
		}
	}
	if len(fed) > 0 {
		f.hungry = len(fed)
	}
	f.stop(stop)
	return fed
}

// stop has the client no longer fetch what there is to stop.
func (f *fetcher) stop(s stops) {
	if len(s.paused) > 0 {
		f.client.PauseFetchPartitions(s.paused)
	}
	if len(s.removed) > 0 {
		f.client.RemoveConsumePartitions(s.removed)
	}
}

// grace is for how long a full feed is waited for before it is paused. A partition that
// is paused loses what the client has fetched for it, and once it is resumed it waits for
// the end of a fetch that may have only idle partitions in it (FetchMaxWait). One that is
// read steadily has room again long before. The others wait with it, so it is short.
//
// It may be longer where only those that are full got anything: the others have nothing
// to come, as far as is known. With 100 ms there bench's row kafka/hot had 0.61 and not
// 0.92, and with 20 ms 0.55: what one response brings may take 150 ms to apply.
const (
	grace      = 20 * time.Millisecond
	graceAlone = 200 * time.Millisecond
)

// hold pauses the feeds that are full, of those that got something, and stay so.
func (f *fetcher) hold(ctx context.Context, fed []*feed) {
	full := f.full(fed)
	if len(full) == 0 {
		return
	}
	wait := grace
	if len(full) == len(fed) {
		wait = graceAlone
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-f.room:
			if full = f.full(full); len(full) == 0 {
				return
			}
		case <-timer.C:
			stop := stops{map[string][]int32{}, map[string][]int32{}}
			most := f.most()
			for _, fd := range full {
				stop.pause(fd, most)
			}
			f.stop(stop)
			return
		case <-ctx.Done():
			return
		}
	}
}

// full returns those of feeds that are to get no more for now.
func (f *fetcher) full(feeds []*feed) (full []*feed) {
	most := f.most()
	for _, fd := range feeds {
		if fd.holds() >= most {
			full = append(full, fd)
		}
	}
	return full
}

// most is what a feed may hold and still get more: half its share, as what it then gets
// comes on top, and what may be lent.
func (f *fetcher) most() int64 { return f.share()/2 + f.spare() }

// spare is what may still be lent to feeds beyond their shares.
func (f *fetcher) spare() int64 {
	share, lent := f.share(), int64(0)
	for _, fd := range f.feeds {
		lent += max(fd.holds()-share, 0)
	}
	return f.budget.spare(lent)
}

// stops collects the partitions that are not to be fetched for now.
type stops struct{ paused, removed map[string][]int32 }

func (s stops) pause(fd *feed, least int64) {
	if fd.pause(least) {
		s.paused[fd.topic] = append(s.paused[fd.topic], fd.number)
	}
}

// remove stops for good, until the feed is opened again. A topic that the
// broker does not know must not stay in the fetch session: its error would end
// every fetch of the others at once.
func (s stops) remove(fd *feed) {
	s.removed[fd.topic] = append(s.removed[fd.topic], fd.number)
}

// count returns how many records a response has.
func count(fetch kgo.Fetch) (records int) {
	for _, t := range fetch.Topics {
		for _, p := range t.Partitions {
			records += len(p.Records)
		}
	}
	return records
}

// deliver hands one partition's part of a fetch to its feed.
func deliver(fd *feed, topic *kgo.FetchTopic, part *kgo.FetchPartition, little bool) error {
	if part.Err == nil || len(part.Records) > 0 {
		switch topic.TopicID {
		case fd.id:
		case [16]byte{}:
			return errNoTopicID
		default:
			return errOtherTopic
		}
		if err := fd.push(part, little); err != nil {
			return err
		}
	}
	return part.Err
}

// trouble deals with an error of a feed: it waits for a while with those that
// pass by themselves, and hands the others to Read.
func (f *fetcher) trouble(fd *feed, err error, stop stops) {
	unknown := isUnknown(err)
	wait, goOn := time.Duration(0), false
	if kerr.IsRetriable(err) {
		wait, goOn = fd.stumble(unknown)
	}
	if !goOn {
		// What is queued beyond the point of a truncation is not in the log
		// any more. It has not been applied, and must not be.
		var loss *kgo.ErrDataLoss
		fd.fail(err, errors.As(err, &loss))
	}
	if unknown {
		stop.remove(fd)
	} else {
		stop.pause(fd, 0)
	}
	if !goOn {
		return
	}
	f.log.Debug("cannot fetch, trying again", "topic", fd.topic, "partition", fd.number, "err", err, "retry_in", wait)
	time.AfterFunc(wait, func() {
		if unknown {
			f.order(open, fd)
		} else if fd.unpause() {
			f.order(resume, fd)
		}
	})
}

// isUnknown reports whether the broker does not know the topic, or not under
// the id we have.
func isUnknown(err error) bool {
	return errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InconsistentTopicID)
}

// general deals with an error that is not about one partition.
func (f *fetcher) general(topic string, err error, stop stops) {
	if err == nil || errors.Is(err, context.Canceled) {
		return // the poll was interrupted for new orders
	}
	if topic == "" {
		f.log.Error("cannot fetch", "err", err)
		return
	}
	for p, fd := range f.feeds {
		if p.topic == topic {
			f.trouble(fd, err, stop)
		}
	}
}

// share is what is kept for each feed at the moment.
func (f *fetcher) share() int64 { return f.budget.share(int(f.reading.Load())) }
