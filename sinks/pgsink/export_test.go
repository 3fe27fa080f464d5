package pgsink

import (
	"reflect"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// ClaimLock lets tests hold a transaction open as a sink would.
var ClaimLock = claimLock

// Varies reports whether s has met with sessions that differ between transactions.
func Varies(s *Sink) bool { return s.varies.Load() }

// Setting is a time as a setting of the server's.
var Setting = setting

// Forget has the next transactions of s look early again, whatever was proven.
func Forget(s *Sink) {
	s.proofs.mu.Lock()
	defer s.proofs.mu.Unlock()
	clear(s.proofs.left)
}

// Prove has s know that the fence was f then.
func Prove(s *Sink, f epoch.Fence, at time.Time) { s.proofs.claimed(f, at) }

// FewAlone is how many claims are made by themselves at a time.
const FewAlone = fewAlone

// Waiting returns how many Execs wait for the connection, of calls beside each other.
func Waiting(tx Tx) int {
	turn := tx.(*handlerTx).fenced.turn
	turn.mu.Lock()
	defer turn.mu.Unlock()
	return len(turn.waiting)
}

// IsPlain reports whether an Exec with this argument may travel with those of others.
func IsPlain(arg any) bool { return isPlain(reflect.TypeOf(arg)) }
