package epoch

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// This file has what a source grants, what a process writes into a fence, and the claim that a transaction
// without a position still has. Fence.Claimed decides whether the fence accepts a claim, and the source, in
// Candidate.Confirm, whether it still holds a lease. A sink has to make later claims wait for a Hold.

// ClaimID is the random name of one claim. It has the layout of a version 4 UUID (RFC 9562), so
// that a database can store it as a UUID. It is compared for equality only. A fence that nobody has
// claimed has the zero ClaimID.
type ClaimID [16]byte

// NewClaimID returns a fresh random id.
func NewClaimID() ClaimID {
	var id ClaimID
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// String returns the id in the text form of a UUID.
func (id ClaimID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// ParseClaimID parses the text form of a UUID.
func ParseClaimID(s string) (ClaimID, error) {
	var id ClaimID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, fmt.Errorf("epoch: claim id %q is not a UUID", s)
	}
	digits := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return ClaimID{}, fmt.Errorf("epoch: claim id %q is not a UUID: %w", s, err)
	}
	return id, nil
}

// MarshalText implements [encoding.TextMarshaler]. In JSON, an id is the text form of a UUID.
func (id ClaimID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *ClaimID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseClaimID(string(text))
	return err
}

// Claim is one process's bid for a partition: a random id, and a lease that the source
// confirmed after the fence was read.
type Claim struct {
	Lease
	ID ClaimID

	// Adopt is the position that the group had committed to the source before there was a fence.
	// Only the first claim of a fence may set it. The partition then continues from there. Nil
	// keeps the fence's position.
	Adopt *Position

	// Above is an epoch of this partition that another system has seen and the sink may have lost.
	// The new epoch is higher than Above. Zero means none.
	Above Epoch
}

// Limits for how far a lease's generation and [Claim.Above] can raise the epoch. Without them, a
// mistake, or a database role that may only claim, could use up all epochs. Above MaxAbove, each
// claim raises the epoch by one.
const (
	// MaxStep limits how many epochs one claim can skip: 2^40.
	MaxStep Epoch = 1 << 40

	// MaxAbove is 2^53, up to which JSON numbers are exact. [Claim.Above] or a generation can raise
	// the epoch to MaxAbove + 1 at most.
	MaxAbove Epoch = 1 << 53
)

// NewClaim returns a claim with a random id for a lease that the source confirmed after the fence
// was read. Use a claim for one swap only. If its outcome is in doubt, confirm again and make a new
// claim.
func NewClaim(confirmed Lease) Claim {
	return Claim{Lease: confirmed, ID: NewClaimID()}
}

// Origin says where a partition's messages and leases come from. Two origins with equal strings
// must mean the same log and the same issuer of generations, so sources build them from ids that
// are never reused.
type Origin struct {
	Partition Partition

	// Log identifies the log whose offsets the fence counts, such as the cluster's id with the
	// topic's id. It must change when offsets start to mean something else: in another cluster, or
	// when a topic is deleted and recreated under its old name.
	Log string

	// Source identifies the issuer of the lease's generations. It must differ between two
	// deployments that lease the same partition from two issuers.
	Source string
}

// Lease is the right to try to claim a partition. A source grants it, and may have revoked it
// before the process knows.
type Lease struct {
	Origin

	// Generation is the number that the source gave this lease: the generation of a group, the
	// epoch of a member, the revision of a key. It is positive. A source that starts over may issue
	// a number again, or a lower number.
	Generation int64

	// Owner names the process for operators. Nothing compares it.
	Owner string
}

// Hold names the claim that a transaction depends on when it moves no position. See
// [Holding.CommitHeld].
type Hold struct {
	Partition Partition
	Claim     ClaimID
}

// Holds returns nil if the fence carries the claim of h, at any position, and otherwise a
// [*StaleError].
func (f Fence) Holds(h Hold) error {
	if f.Partition != h.Partition {
		return fmt.Errorf("epoch: the hold is of %s, and the fence of %s", h.Partition, f.Partition)
	}
	if f.Claim != h.Claim || h.Claim == (ClaimID{}) {
		return &StaleError{Partition: f.Partition, Ours: h.Claim, Held: f}
	}
	return nil
}

// Hold calls [Fence.Holds] on the fence of h's partition, or returns a [*MissingError]. It changes
// nothing.
func (fs Fences) Hold(h Hold) error {
	f, err := fs.Read(h.Partition)
	if err != nil {
		return err
	}
	return f.Holds(h)
}
