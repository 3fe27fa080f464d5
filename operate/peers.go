package operate

import (
	"context"
	"errors"
	"time"
)

// This file has what lets the processes of a group notice within a second that one of them has died. No claim
// depends on it: who is suspected wrongly loses time, and no effect. [Process] is for operators, and slower.

// Peer is a process of a group, as the others see it.
type Peer struct {
	Group string
	Run   string // as in [Process]
	Name  string // as in [Process]
	Host  string

	// Member is its id in the group, by which its source can be asked to remove it. It is empty while it is
	// no member.
	Member string

	// Patience is how long the others wait for a sign before they suspect it. Nobody suspects it if it is 0.
	Patience time.Duration

	// What follows is what a [Vigil] sees of others.

	// Silent is the time since its last sign, by the clock of what both sign to.
	Silent time.Duration

	// Gone says that its connection to that has ended, without a goodbye: it has died, or signs again soon.
	Gone bool

	// Suspected is the member id under which it was suspected last, and By is whose suspicion that was.
	Suspected, By string
}

// Look is what one process sees of its group at one moment.
type Look struct {
	// Peers are the others that this process looks after, and all that were suspected in the last minute, this
	// process included: it raises its patience then. In a large group each process looks after a few.
	Peers []Peer

	// Members are the processes of the group with a Member, this one included, that are not suspected. Silent
	// are those of them that are silent for longer than their patience, or gone.
	Members, Silent int
}

// ErrNoWatch is returned by [Watch.Attend] if there is nothing to sign to, and will not be: what is behind the
// Watch is older, or does not permit it. [Vigil.Suspect] returns it if that alone is not permitted.
var ErrNoWatch = errors.New("the processes of a group cannot see each other here")

// Watch is implemented by sinks, and by sources, to which the processes of a group can sign and which show
// each one the signs of others.
type Watch interface {
	// Attend opens a connection of its own, behind which no work of handlers waits, and gives the first sign.
	Attend(ctx context.Context, self Peer) (Vigil, error)
}

// Vigil is one process's part in a [Watch]. After an error of a method it is closed and opened anew. Its
// methods are called by one goroutine.
type Vigil interface {
	// Look gives a sign of self and returns what there is to see.
	Look(ctx context.Context, self Peer) (Look, error)

	// Suspect records that by suspects p under its member id, and reports whether p is to be removed: not if
	// p has signed since it was seen, or somebody of the group was suspected within the last second.
	Suspect(ctx context.Context, by, p Peer) (bool, error)

	// Close says goodbye, if ctx has not ended, and closes the connection.
	Close(ctx context.Context)
}
