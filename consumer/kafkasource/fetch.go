package kafkasource

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

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

	reading atomic.Int32 // how many feeds there are

	mu      sync.Mutex
	orders  []order
	interim context.CancelFunc // ends the poll under way

	// The rest belongs to the loop.
	feeds map[place]*feed
	ids   map[string][16]byte // the topic ids the client has adopted
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
	return &fetcher{client: cl, budget: b, log: log, feeds: map[place]*feed{}, ids: map[string][16]byte{}}
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
		f.distribute(fetches)
	}
}

// follow carries out orders, all of them in one go: each change to what a
// client reads costs it the fetches under way.
func (f *fetcher) follow(orders []order) {
	remove, unpause := map[string][]int32{}, map[string][]int32{}
	opened := map[place]*feed{}
	for _, o := range orders {
		p := o.feed.place
		current := f.feeds[p] == o.feed
		switch {
		case o.what == open:
			f.feeds[p], opened[p] = o.feed, o.feed
		case o.what == resume && current:
			unpause[p.topic] = append(unpause[p.topic], p.number)
		case o.what == shut && current:
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
func (f *fetcher) add(feeds map[place]*feed) {
	add := map[string]map[int32]kgo.Offset{}
	for p, fd := range feeds {
		if id, ok := f.ids[p.topic]; ok && id != fd.id {
			f.renew(p.topic, fd.id)
		}
		f.ids[p.topic] = fd.id
		if add[p.topic] == nil {
			add[p.topic] = map[int32]kgo.Offset{}
		}
		add[p.topic][p.number] = kgo.NewOffset().At(fd.first).WithEpoch(fd.epoch)
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
	if s, changed := f.budget.sizes(len(f.feeds), len(f.client.DiscoveredBrokers())); changed {
		f.client.UpdateFetchMaxBytes(s.fetch, s.partition)
	}
}

// distribute hands what a poll brought to the feeds, and pauses those that are
// full or have failed: a partition that answers with an error would otherwise
// be asked again at once, and again.
func (f *fetcher) distribute(fetches kgo.Fetches) {
	high := f.share() * 3 / 4
	pause := map[string][]int32{}
	stop := func(fd *feed) {
		if fd.pause() {
			pause[fd.topic] = append(pause[fd.topic], fd.number)
		}
	}
	for _, fetch := range fetches {
		for i := range fetch.Topics {
			topic := &fetch.Topics[i]
			for j := range topic.Partitions {
				part := &topic.Partitions[j]
				if part.Partition < 0 { // about the whole topic, or about nothing in particular
					f.general(topic.Topic, part.Err, stop)
					continue
				}
				fd := f.feeds[place{topic.Topic, part.Partition}]
				if fd == nil {
					continue
				}
				if held, failed := f.deliver(fd, topic, part); failed || held >= high {
					stop(fd)
				}
			}
		}
	}
	if len(pause) > 0 {
		f.client.PauseFetchPartitions(pause)
	}
}

// deliver hands one partition's part of a fetch to its feed.
func (f *fetcher) deliver(fd *feed, topic *kgo.FetchTopic, part *kgo.FetchPartition) (held int64, failed bool) {
	if (part.Err == nil || len(part.Records) > 0) && topic.TopicID != fd.id {
		err := errOtherTopic
		if topic.TopicID == ([16]byte{}) {
			err = errNoTopicID
		}
		fd.fail(err, false)
		return 0, true
	}
	if part.Err == nil || len(part.Records) > 0 {
		held, failed = fd.push(part)
	}
	if part.Err == nil {
		return held, failed
	}
	// What is queued beyond the point of a truncation is not in the log any
	// more. It has not been applied, and must not be.
	var loss *kgo.ErrDataLoss
	fd.fail(part.Err, errors.As(part.Err, &loss))
	return held, true
}

// general deals with an error that is not about one partition.
func (f *fetcher) general(topic string, err error, stop func(*feed)) {
	if err == nil || errors.Is(err, context.Canceled) {
		return // the poll was interrupted for new orders
	}
	if topic == "" {
		f.log.Error("cannot fetch", "err", err)
		return
	}
	for p, fd := range f.feeds {
		if p.topic == topic {
			fd.fail(err, false)
			stop(fd)
		}
	}
}

// share is what one partition's feed may hold at the moment.
func (f *fetcher) share() int64 { return f.budget.share(int(f.reading.Load())) }
