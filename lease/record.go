package lease

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// Anybody who may write to the store can put foreign values into our keys. Members believe a value
// only as far as a member can have written it. A foreign value that was not replaced for a TTL
// belongs to nobody: a member replaces it with a swap.

const (
	// mostRecord is more than any lease takes, in bytes.
	mostRecord = 16 << 10

	// mostGeneration leaves room to grow.
	mostGeneration = 1 << 62

	// mostServed limits the resources that a registration may claim, because each member computes
	// shares over all of them. The limit is higher if this member serves many itself.
	mostServed = 1 << 14

	// mostRegistration limits the bytes of a registration. A registration that declines mostServed
	// resources fits.
	mostRegistration = 8 << 20
)

// leaseRecord is the value of a resource's key. It has no member once the lease was released.
type leaseRecord struct {
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

// memberRecord is the value of a registration's key.
type memberRecord struct {
	Name     string           `json:"name"`
	Serves   map[string]int32 `json:"serves,omitempty"`   // number of resources by name; none when the member leaves or is on trial
	Declined []string         `json:"declined,omitempty"` // resources that it does not want now
	Wants    []string         `json:"wants,omitempty"`    // names for which Acquire waits
	TTL      int64            `json:"ttl,omitempty"`      // milliseconds that the registration lasts after a renewal
	Nonce    string           `json:"nonce,omitempty"`    // by which the member recognises its own record
	Trial    int64            `json:"trial,omitempty"`    // milliseconds that a new member is to wait before it serves anything
	Ended    bool             `json:"ended,omitempty"`    // by another member; the id is not used again
}

func (r memberRecord) equal(other memberRecord) bool {
	return maps.Equal(r.Serves, other.Serves) && slices.Equal(r.Declined, other.Declined)
}

// memberID matches the ids of registrations.
var memberID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// leaseOf parses the value of a resource's key. ok is false for a value that is no lease. A lease that
// was released has a generation.
func leaseOf(value []byte) (r leaseRecord, ok bool) {
	if len(value) > mostRecord || json.Unmarshal(value, &r) != nil || r.Generation < 0 || r.Generation > mostGeneration ||
		r.Member == "" && r.Generation == 0 || r.Member != "" && !memberID.MatchString(r.Member) {
		return leaseRecord{}, false
	}
	return r, true
}

// registrationOf parses the value of a member's key. An invalid value serves nothing.
func registrationOf(value []byte) memberRecord {
	var r memberRecord
	if len(value) > mostRegistration || json.Unmarshal(value, &r) != nil {
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

// termOf returns how long after it was last renewed a registration lasts, for other members. A TTL
// that no member can have does not count.
func (m *Member) termOf(r memberRecord) time.Duration {
	if r.TTL < 0 || r.TTL > mostTTL.Milliseconds() {
		return m.TTL
	}
	return max(m.TTL, time.Duration(r.TTL)*time.Millisecond)
}
