package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/form"
)

// This file has the keys and values of the items, and what they say together of the group: who is a
// member and who has what. It may be late, and decides nothing.

// picture is what a member knows of the group's keys at one time. It may be late, and decides
// nothing: actions on it are swaps, which the store accepts or refuses.
type picture struct {
	leases        map[Resource]holder
	members       map[string]member // also those that were ended
	registrations int               // how often a registration was added or deleted
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
	return &picture{maps.Clone(p.leases), maps.Clone(p.members), p.registrations}
}

func (p *picture) isRegistered(id string) bool {
	m, known := p.members[id]
	return known && !m.Ended
}

// membersChangedSince reports whether a member has joined or left, also if it has done both.
func (p *picture) membersChangedSince(was *picture) bool {
	return p.registrations != was.registrations || !maps.EqualFunc(p.members, was.members, func(a, b member) bool { return a.Ended == b.Ended })
}

// keep takes over from the picture before when versions were first seen, and what was learnt after
// the store was asked for this one.
func (p *picture) keep(was *picture, asked time.Time) {
	p.registrations = was.registrations
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

// apply records an item that the store had when it was asked. It reports whether the change matters
// to anybody, and whether the item is older than what the picture has, which stays.
func (p *picture) apply(k keys, item cas.Item, asked time.Time) (changed, late bool) {
	if id, ok := k.parseMember(item.Key); ok {
		late = isOlder(item, p.members[id].item)
		return p.setMember(id, item, asked), late
	}
	if at, ok := k.parseResource(item.Key); ok {
		late = isOlder(item, p.leases[at].item)
		return p.setLease(at, item, asked), late
	}
	return false, false
}

func (p *picture) setMember(id string, item cas.Item, asked time.Time) bool {
	was, known := p.members[id]
	if known && isOlder(item, was.item) {
		return false
	}
	if known != item.Live {
		p.registrations++
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

// Resource is what a lease is about: one of the numbered parts of Name, or, for [Member.Acquire],
// part 0.
type Resource struct {
	Name   string
	Number int32
}

// String returns the name and the number, such as "orders/3".
func (r Resource) String() string { return r.Name + "/" + strconv.Itoa(int(r.Number)) }

func (r Resource) compare(other Resource) int {
	return cmp.Or(cmp.Compare(r.Name, other.Name), cmp.Compare(r.Number, other.Number))
}

// keys are the keys of one group. One list has them all. A member ignores keys that are neither of a
// member nor of a resource, so that a later version can have more.
type keys struct{ prefix string }

func keysOf(group string) keys { return keys{cas.Join(group, "lease", "")} }

func (k keys) member(id string) string { return k.prefix + "member/" + id }

func (k keys) resource(r Resource) string {
	return k.prefix + cas.Join("resource", r.Name, strconv.Itoa(int(r.Number)))
}

func (k keys) parseMember(key string) (id string, ok bool) {
	return strings.CutPrefix(key, k.prefix+"member/")
}

func (k keys) parseResource(key string) (Resource, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"resource/")
	if !ok {
		return Resource{}, false
	}
	name, number, _ := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return Resource{}, false
	}
	name, err = url.PathUnescape(name)
	r := Resource{name, int32(n)}
	return r, err == nil && k.resource(r) == key // no other spelling of it
}

// Anybody who may write to the store can put foreign values into our keys. Members believe a value
// only as far as a member can have written it. A foreign value that was not replaced for a TTL
// belongs to nobody: a member replaces it with a swap.

const (
	// mostRecord is more than any lease takes, in bytes.
	mostRecord = 16 << 10

	// mostGeneration leaves some to grow.
	mostGeneration = 1 << 62

	// mostServed limits the resources that a registration may claim, because each member computes
	// shares over all of them. The limit is higher if this member serves many itself.
	mostServed = 1 << 14

	// mostRegistration limits the bytes of a registration. A registration that declines mostServed
	// resources fits.
	mostRegistration = 8 << 20
)

// leaseRecord is the value of a resource's key. It has no member once the lease was released. Whoever takes
// the lease replaces all of it. In every version, member is who holds it.
type leaseRecord struct {
	form.Version
	Owner      string `json:"owner,omitempty"`  // for operators
	Member     string `json:"member,omitempty"` // the registration on which the lease depends
	Nonce      string `json:"nonce,omitempty"`  // of the time with the lease
	Since      string `json:"since,omitempty"`  // for operators: when that began, by the holder's clock, in RFC 3339
	Generation int64  `json:"generation"`       // of this write
}

func (r leaseRecord) json() []byte {
	data, _ := json.Marshal(r) // strings and a number
	return data
}

// memberRecord is the value of a registration's key. Its member alone renews it. In every version, name,
// serves, declined, ttl and ended mean what they mean here: members of two versions share resources.
type memberRecord struct {
	form.Version
	Name     string           `json:"name"`
	Serves   map[string]int32 `json:"serves,omitempty"`   // number of resources by name; none when the member leaves or is on trial
	Declined []string         `json:"declined,omitempty"` // resources that it does not want now
	Wants    []string         `json:"wants,omitempty"`    // names for which Acquire waits
	TTL      int64            `json:"ttl,omitempty"`      // milliseconds that the registration lasts after a renewal
	Nonce    string           `json:"nonce,omitempty"`    // by which the member recognises its own record
	Trial    int64            `json:"trial,omitempty"`    // milliseconds that a new member is to wait before it serves anything
	Ended    bool             `json:"ended,omitempty"`    // by another member; the id is not used again

	Note      string `json:"note,omitempty"`      // for the other members
	Suspected string `json:"suspected,omitempty"` // who has ended it with End, before its TTL had passed
}

func (r memberRecord) equal(other memberRecord) bool {
	return maps.Equal(r.Serves, other.Serves) && slices.Equal(r.Declined, other.Declined)
}

// memberID matches the ids of registrations.
var memberID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// leaseOf parses the value of a resource's key. ok is false for a value that is no lease. A lease that
// was released has a generation.
func leaseOf(value []byte) (r leaseRecord, ok bool) {
	if len(value) > mostRecord {
		return leaseRecord{}, false
	}
	err := form.Parse(value, &r)
	isMember := memberID.MatchString(r.Member)
	if errors.Is(err, form.ErrNewer) {
		newer := leaseRecord{Version: form.Version{V: form.Newest + 1}, Owner: r.Owner, Since: r.Since, Generation: r.Generation}
		if isMember {
			newer.Member = r.Member
		}
		return newer, true
	}
	if err != nil || r.Generation < 0 || r.Generation > mostGeneration ||
		r.Member == "" && r.Generation == 0 || r.Member != "" && !isMember {
		return leaseRecord{}, false
	}
	return r, true
}

// registrationOf parses the value of a member's key, of a newer version as much as can be read. An invalid
// value serves nothing.
func registrationOf(value []byte) memberRecord {
	var r memberRecord
	if len(value) > mostRegistration {
		return memberRecord{}
	}
	if err := form.Parse(value, &r); err != nil && !errors.Is(err, form.ErrNewer) {
		return memberRecord{}
	}
	return r
}

// generationOf returns the generation of the lease that an item holds: its number, or where the
// store has none, the counter in its value.
func generationOf(item cas.Item) int64 {
	if item.Number > 0 {
		return item.Number
	}
	r, _ := leaseOf(item.Value)
	return r.Generation
}

// Holder is the holder of a resource, for operators.
type Holder struct {
	Resource   Resource
	Owner      string    // Options.Name and the process; from [Member.Holder] as [Member.Owner]
	Since      time.Time // when it took the lease, by its own clock; zero if the item does not have it
	Generation int64
}

// Holders returns who has which resource of a group, by resource. It writes nothing, and needs no
// [Member]. A resource whose holder was killed is listed until another member takes it.
func Holders(ctx context.Context, store cas.Store, group string) ([]Holder, error) {
	facts, err := store.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: holders in group %q: %w", group, err)
	}
	k := keysOf(group)
	var all []Holder
	for item, err := range store.List(ctx, k.prefix) {
		if err == nil && !facts.ListsWhole {
			item, err = store.Get(ctx, item.Key)
		}
		if err != nil {
			return nil, fmt.Errorf("lease: holders in group %q: %w", group, err)
		}
		at, isResource := k.parseResource(item.Key)
		r, isLease := leaseOf(item.Value)
		if !isResource || !isLease || !item.Live || r.Member == "" {
			continue
		}
		all = append(all, Holder{at, r.Owner, sinceOf(r), generationOf(item)})
	}
	slices.SortFunc(all, func(a, b Holder) int { return a.Resource.compare(b.Resource) })
	return all, nil
}

// Holder returns who has the lease of a single resource, as this member last saw it, and whether
// anybody has it. It sends no request, and knows what [Member.TryAcquire] knows. [Holder.Owner] is
// the holder's [Member.Owner], or empty if the item of the lease holds something else.
func (m *Member) Holder(name string) (Holder, bool) {
	at := Resource{Name: name}
	now := m.view.snapshot()
	last := now.leases[at]
	if !now.isHeld(last) {
		return Holder{}, false
	}
	h := Holder{Resource: at, Generation: generationOf(last.item)}
	if !last.isStrange {
		h.Owner = last.Owner + "/" + processOf(last.Member)
		h.Since = sinceOf(last.leaseRecord)
	}
	return h, true
}

func sinceOf(r leaseRecord) time.Time {
	since, _ := time.Parse(time.RFC3339, r.Since)
	return since
}
