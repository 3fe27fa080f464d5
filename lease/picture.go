package lease

import (
	"maps"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// picture is what a member knows of the group's keys at one time. It may be late, and decides
// nothing: actions on it are swaps, which the store accepts or refuses.
type picture struct {
	leases  map[Resource]holder
	members map[string]member // also those that were ended
	turns   int               // how often a registration was added or deleted
}

// holder is the state of a resource's key.
type holder struct {
	leaseRecord
	item  cas.Item
	known time.Time // when the store was asked
	since time.Time // when we first saw this version

	isStrange bool      // the value is no lease
	strange   time.Time // since when the key has held only values that are no lease
}

type member struct {
	memberRecord
	item  cas.Item
	known time.Time
	since time.Time
	first time.Time // when we first saw the registration
}

func newPicture() *picture {
	return &picture{leases: map[Resource]holder{}, members: map[string]member{}}
}

func (p *picture) clone() *picture {
	return &picture{maps.Clone(p.leases), maps.Clone(p.members), p.turns}
}

// item returns the item with the key as the picture has it.
func (p *picture) item(k keys, key string) cas.Item {
	if id, ok := k.parseMember(key); ok {
		return p.members[id].item
	}
	at, _ := k.parseResource(key)
	return p.leases[at].item
}

func (p *picture) isRegistered(id string) bool {
	m, known := p.members[id]
	return known && !m.Ended
}

// isHeld reports whether somebody has a lease, as far as is known. A lease is free after it was
// released, or if the registration that it names is missing or was ended.
func (p *picture) isHeld(h holder) bool {
	return h.item.Live && (h.isStrange || h.Member != "" && p.isRegistered(h.Member))
}

// membersChangedSince reports whether a member has joined or left, also if it has done both.
func (p *picture) membersChangedSince(was *picture) bool {
	return p.turns != was.turns || !maps.EqualFunc(p.members, was.members, func(a, b member) bool { return a.Ended == b.Ended })
}

// keep takes over from the picture before when versions were first seen, and what was learnt after
// the store was asked for this one.
func (p *picture) keep(was *picture, asked time.Time) {
	p.turns = was.turns
	for at, before := range was.leases {
		now, ok := p.leases[at]
		switch {
		case before.known.After(asked) && !isOlder(before.item, now.item):
			p.leases[at] = before
		case ok:
			p.leases[at] = now.after(before)
		}
	}
	for id, before := range was.members {
		now, ok := p.members[id]
		switch {
		case before.known.After(asked) && !isOlder(before.item, now.item):
			p.members[id] = before
		case ok && now.item.Version == before.item.Version:
			now.since, now.first = before.since, before.first
			p.members[id] = now
		case ok:
			now.first = before.first
			p.members[id] = now
		}
	}
}

// after returns the state with the times that continue from the one before.
func (h holder) after(before holder) holder {
	if h.item.Version == before.item.Version {
		h.since = before.since
	}
	if h.isStrange && before.isStrange {
		h.strange = before.strange
	}
	return h
}

// apply records an item that the store had when it was asked, and reports whether the change matters
// to anybody.
func (p *picture) apply(k keys, item cas.Item, asked time.Time) bool {
	if id, ok := k.parseMember(item.Key); ok {
		return p.setMember(id, item, asked)
	}
	if at, ok := k.parseResource(item.Key); ok {
		return p.setLease(at, item, asked)
	}
	return false
}

func (p *picture) setMember(id string, item cas.Item, asked time.Time) bool {
	was, known := p.members[id]
	if known && isOlder(item, was.item) {
		return false
	}
	if known != item.Live {
		p.turns++
	}
	if !item.Live {
		delete(p.members, id)
		return known
	}
	now := member{memberRecord: registrationOf(item.Value), item: item, known: asked, since: time.Now()}
	now.first = now.since
	if known {
		now.first = was.first
	}
	if known && was.item.Version == item.Version {
		now.since = was.since
	}
	p.members[id] = now
	return !known || now.Ended != was.Ended || !now.equal(was.memberRecord)
}

func (p *picture) setLease(at Resource, item cas.Item, asked time.Time) bool {
	was, known := p.leases[at]
	if known && isOlder(item, was.item) {
		return false
	}
	now := holder{item: item, known: asked, since: time.Now()}
	if item.Live {
		r, ok := leaseOf(item.Value)
		now.leaseRecord, now.isStrange = r, !ok
		if !ok {
			now.strange = now.since
		}
	}
	if known {
		now = now.after(was)
	}
	p.leases[at] = now
	return !known || was.item.Live != item.Live || was.Member != now.Member || was.Nonce != now.Nonce || was.isStrange != now.isStrange
}

// isOlder compares numbers, which a store may not have.
func isOlder(item, than cas.Item) bool { return item.Number > 0 && item.Number < than.Number }
