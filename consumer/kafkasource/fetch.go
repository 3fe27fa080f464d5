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

	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides what the reading client fetches, and when a partition is paused. budget.go has
// the limits in bytes.

// fetcher drives the reading client. Only its loop polls and changes what the client reads, in
// turns. So after a partition was removed, no poll can return records that were fetched for it
// before.
//
// Reading has a client of its own, which is no group member. As a group member, kgo begins at the
// committed offsets, drops the buffered records of all partitions when one is set to an offset, and
// checks for truncation (KIP-320) only later. In a direct consumer, an added partition starts at
// the sink's position, after a check of its leader epoch, and does not disturb the others.
type fetcher struct {
	client *kgo.Client
	budget *budget
	log    *slog.Logger

	reading atomic.Int32  // number of feeds
	freed   chan struct{} // full when something was taken from a feed

	mu      sync.Mutex
	orders  []order
	interim context.CancelFunc // ends the poll under way

	// Only the loop uses these.
	feeds  map[topicPartition]*feed
	hungry int                 // number of feeds that got records last
	ids    map[string][16]byte // the topic ids that the client uses
}

// order is an order to the loop, for between two polls.
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
	return &fetcher{client: cl, budget: b, log: log, freed: make(chan struct{}, 1), feeds: map[topicPartition]*feed{}, ids: map[string][16]byte{}}
}

// order adds an order and ends the poll under way. It does not wait for the order.
func (f *fetcher) order(what orderKind, fd *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, order{what, fd})
	if f.interim != nil {
		f.interim()
	}
}

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

// taken wakes hold after something was taken from a feed.
func (f *fetcher) taken() {
	waits.Notify(f.freed)
}

// follow carries out all orders together, because each change to what the client reads costs the
// fetches under way.
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
			o.feed.shut = true // trouble may order to open it again later
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

// renew makes the client forget a topic that was deleted and created again, because the client
// keeps the id that it saw first. Feeds with the old id fail.
func (f *fetcher) renew(topic string, id [16]byte) {
	for p, fd := range f.feeds {
		if p.topic == topic && fd.id != id {
			fd.fail(errOtherTopic, false)
		}
	}
	f.client.PurgeTopicsFromConsuming(topic)
}

func (f *fetcher) resize() {
	if s, changed := f.budget.sizes(len(f.feeds), f.hungry, len(f.client.DiscoveredBrokers()), f.spare()); changed {
		f.client.UpdateFetchMaxBytes(s.fetch, s.partition)
	}
}

// distribute hands the results of a poll to the feeds, and returns the feeds that got some. It
// stops failed partitions, because kgo would fetch them again at once: kgo waits only if all
// partitions of a broker have failed. So kgo passes on transient errors too
// (KeepRetryableFetchErrors).
func (f *fetcher) distribute(fetches kgo.Fetches) (fed []*feed) {
	stop := stops{map[string][]int32{}, map[string][]int32{}}
	for _, fetch := range fetches {
		records := count(fetch)
		for i := range fetch.Topics {
			topic := &fetch.Topics[i]
			for j := range topic.Partitions {
				part := &topic.Partitions[j]
				if part.Partition < 0 { // an error of the whole topic, or of no topic
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

func (f *fetcher) stop(s stops) {
	if len(s.paused) > 0 {
		f.client.PauseFetchPartitions(s.paused)
	}
	if len(s.removed) > 0 {
		f.client.RemoveConsumePartitions(s.removed)
	}
}

// grace is how long hold waits for a full feed before it pauses the partition. A paused partition
// loses the records that the client has fetched for it. When it is resumed, it waits for the end of
// a fetch that may have only idle partitions (FetchMaxWait). A partition that is read steadily has
// space again long before that. grace is short, because the other partitions wait meanwhile.
//
// graceAlone applies if only full feeds got records, so that the others probably have none to come.
// It was measured: with one busy partition of eight, throughput was 0.92 of that with eight even
// ones, with 100 ms 0.61, and with 20 ms 0.55. It may take 150 ms to apply the records of one response.
const (
	grace      = 20 * time.Millisecond
	graceAlone = 200 * time.Millisecond
)

// hold pauses the feeds in fed that are full and stay full for the grace time.
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
		case <-f.freed:
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

// full returns the feeds that should get no more for now.
func (f *fetcher) full(feeds []*feed) (full []*feed) {
	most := f.most()
	for _, fd := range feeds {
		if fd.holds() >= most {
			full = append(full, fd)
		}
	}
	return full
}

// most returns the cost at which a feed is full: what may be lent, and half its share, because the
// next fetch comes on top.
func (f *fetcher) most() int64 { return f.share()/2 + f.spare() }

func (f *fetcher) spare() int64 {
	share, lent := f.share(), int64(0)
	for _, fd := range f.feeds {
		lent += max(fd.holds()-share, 0)
	}
	return f.budget.spare(lent)
}

type stops struct{ paused, removed map[string][]int32 }

func (s stops) pause(fd *feed, least int64) {
	if fd.pause(least) {
		s.paused[fd.topic] = append(s.paused[fd.topic], fd.number)
	}
}

// remove stops a feed until it is opened again. A topic that the broker does not know must not stay
// in the fetch session: its error would end each fetch of the other partitions at once.
func (s stops) remove(fd *feed) {
	s.removed[fd.topic] = append(s.removed[fd.topic], fd.number)
}

func count(fetch kgo.Fetch) (records int) {
	for _, t := range fetch.Topics {
		for _, p := range t.Partitions {
			records += len(p.Records)
		}
	}
	return records
}

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

// trouble handles an error of a feed. It retries a transient error for a while, and passes any
// other error to Read.
func (f *fetcher) trouble(fd *feed, err error, stop stops) {
	unknown := isUnknown(err)
	wait, goOn := time.Duration(0), false
	if kerr.IsRetriable(err) {
		wait, goOn = fd.stumble(unknown)
	}
	if !goOn {
		// Queued records beyond the point of a truncation are not in the log any more, and must not
		// be applied.
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

// isUnknown reports whether the broker does not know the topic, or knows it under another id.
func isUnknown(err error) bool {
	return errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InconsistentTopicID)
}

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

func (f *fetcher) share() int64 { return f.budget.share(int(f.reading.Load())) }
