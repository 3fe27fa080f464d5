// Package castest is the suite that every [cas.Store] must pass: [Run] plays its histories, and
// [RunKilled] those of a store whose servers are killed. Its own tests, in castest_test.go, show that a
// history catches each broken store.
package castest

import (
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// Rig is one empty set of items for a history. The optional fields make more histories possible.
type Rig struct {
	// Open returns a store on the items with a client of its own, as another process would. It
	// connects to via(address) instead of the server's own address. It is called a few times for
	// each rig. Open closes the store with t.Cleanup.
	Open func(t testing.TB, via func(address string) string) cas.Store

	// Served reports that there is a server, which Open reaches by TCP.
	Served bool

	// Backup saves the items. The function that it returns puts them back, as a restored backup
	// does, and returns once the store answers again. Optional.
	Backup func(t testing.TB) (restore func())

	// Failover sets up a standby that gets no further writes. The function that it returns makes it
	// the server, as a failover that loses acknowledged writes does. Optional.
	Failover func(t testing.TB) (fail func())

	// Kill kills the server, or the node that leads a cluster, and starts it again. It returns when
	// there is a server, or a leader, again. Acknowledged writes stay. Only the
	// functions RunKilled, of this package, leasetest and cassinktest, need it.
	Kill func(t testing.TB)

	// Lag makes a server that answers clients fall behind the others, for instance because it loses
	// its disk. The function that it returns reports whether that server still lacks something.
	// Optional.
	Lag func(t testing.TB) (lags func() bool)

	// Empty replaces the store by an empty one, as somebody does who loses it. Optional.
	Empty func(t testing.TB)

	// Strands reports that Empty makes the clients that are open useless, as ZooKeeper does.
	Strands bool

	// Races is the number of rounds of a history in which clients write at the same moment. Defaults
	// to 150. Lower it for a server in which a write that meets another one waits for a second or more.
	Races int

	// Native returns the value that a client of the store's own reads for a key. Optional.
	Native func(t testing.TB, key string) []byte

	// Foreign writes with a client of the store's own what no driver writes, where the item with the
	// key would be, and returns its value. The name says what it is. Optional.
	Foreign map[string]func(t testing.TB, key string) (value []byte)

	// Full makes the store refuse writes because it has no room. The function that it returns gives
	// it room again. Optional.
	Full func(t testing.TB) (room func())
}

// Run runs every history, a subtest each, on a rig of its own. create makes an empty set of items, which is removed when t ends.
func Run(t *testing.T, create func(t testing.TB) Rig) { run(t, histories, patience, create) }

// RunKilled runs histories of a store that is on several nodes, or whose items survive a kill of its
// server. Those with Rig.Kill and Rig.Lag are not among those of [Run].
func RunKilled(t *testing.T, create func(t testing.TB) Rig) { run(t, onNodes, 3*patience, create) }

func run(t *testing.T, hs []history, limit time.Duration, create func(t testing.TB) Rig) {
	has := promisesOf(t, create(t))
	for _, h := range hs {
		t.Run(h.claim, func(t *testing.T) {
			r := create(t)
			if missing := h.needs(r, has); missing != "" {
				t.Skip("needs " + missing)
			}
			h.play(newWorld(t, limit, r))
		})
	}
}

// promises are what a store promises, and which of the optional interfaces it has.
type promises struct {
	cas.Facts
	watches, expires, getsAll, clock bool
}

func promisesOf(t *testing.T, r Rig) (p promises) {
	s := r.Open(t, direct)
	var err error
	if p.Facts, err = s.Facts(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, p.watches = s.(cas.Watcher)
	_, p.expires = s.(cas.Expirer)
	_, p.clock = s.(cas.Clock)
	_, p.getsAll = s.(cas.BatchGetter)
	return p
}

// direct is the way to the server itself.
func direct(address string) string { return address }

// history is one property of stores and the play that shows it.
type history struct {
	claim string // in words
	needs need
	play  func(w *world)
}

// need returns what a history lacks, or "".
type need func(r Rig, p promises) string

func nothing(Rig, promises) string { return "" }

func aServer(r Rig, _ promises) string { return unless(r.Served, "a server (Rig.Served)") }

func aKill(r Rig, _ promises) string { return unless(r.Kill != nil, "Rig.Kill") }

func aReplica(r Rig, _ promises) string { return unless(r.Lag != nil, "Rig.Lag") }

func aWayToEmptyIt(r Rig, _ promises) string { return unless(r.Empty != nil, "Rig.Empty") }

func aNativeClient(r Rig, _ promises) string { return unless(r.Native != nil, "Rig.Native") }

func foreigners(r Rig, _ promises) string { return unless(r.Foreign != nil, "Rig.Foreign") }

func aFullStore(r Rig, _ promises) string { return unless(r.Full != nil, "Rig.Full") }

func aBackup(r Rig, p promises) string {
	return unless(r.Backup != nil && !p.Repeats, "Rig.Backup, and versions that do not repeat")
}

func aFailover(r Rig, p promises) string {
	return unless(r.Failover != nil && !p.Repeats, "Rig.Failover, and versions that do not repeat")
}

func numbers(_ Rig, p promises) string { return unless(p.Numbers, "numbers (Facts.Numbers)") }

func limitsOf(_ Rig, p promises) string {
	return unless(p.MaxValue > 0 && p.MaxNote > 0, "limits (Facts.MaxValue, MaxNote)")
}

func aWatcher(_ Rig, p promises) string { return unless(p.watches, "a cas.Watcher") }

func aServerToWatch(r Rig, p promises) string {
	return unless(r.Served && p.watches, "a cas.Watcher, and a server (Rig.Served)")
}

func anExpirer(_ Rig, p promises) string { return unless(p.expires, "a cas.Expirer") }

func aClock(_ Rig, p promises) string { return unless(p.clock, "a cas.Clock") }

func aBatchGetter(_ Rig, p promises) string { return unless(p.getsAll, "a cas.BatchGetter") }

func unless(has bool, what string) string {
	if has {
		return ""
	}
	return what
}

var histories = []history{
	{"an item that nobody has written is absent", nothing, absent},
	{"what was written is read, value and note, whatever the bytes", nothing, writtenAndRead},
	{"value and note are read as one write made them", nothing, ofOneWrite},
	{"the caller may change what it gave and what it got", nothing, buffers},
	{"a client of the store's own reads the value", aNativeClient, native},
	{"what another program has written is an item with its value, or an error", foreigners, foreign},
	{"a full store refuses a write and says so, and takes a deletion", aFullStore, full},
	{"an item that has changed is neither replaced nor deleted", nothing, changed},
	{"the same content again is another version", nothing, sameContent},
	{"an item that was deleted and written again is not as it was seen", nothing, deletedAndWritten},
	{"the version of a write that a restored backup lacks names no other", aBackup, func(w *world) { w.losesWrites(w.rig.Backup) }},
	{"the version of a write that a failover has lost names no other", aFailover, func(w *world) { w.losesWrites(w.rig.Failover) }},
	{"a store that was emptied says that it is another one", aWayToEmptyIt, emptied},
	{"of writes at the same time one wins", nothing, oneWrites},
	{"of first writes at the same time one wins", nothing, oneCreates},
	{"of a write and a deletion at the same time one wins", nothing, oneWritesOrDeletes},
	{"a counter that many increment loses nothing", nothing, counter},
	{"several goroutines use one store", nothing, sharedStore},
	{"numbers grow, also over deletions", numbers, growingNumbers},
	{"keys of every kind are kept apart", nothing, keys},
	{"a list has each item with the prefix once, and no other", nothing, prefixes},
	{"a thousand items are listed, and can be replaced as listed", nothing, thousand},
	{"a list may be changed by its reader", nothing, swapsWhileItLists},
	{"an item that is replaced again and again is in each list", nothing, replacedWhileItLists},
	{"a reader may leave a list before its end", nothing, leavesEarly},
	{"an impossible key is refused", nothing, impossibleKeys},
	{"an item at the limits is taken, and one above is refused", limitsOf, limits},
	{"a context that has ended ends a call", nothing, endedContext},
	{"a server that is silent ends no later than the context", aServer, silent},
	{"a write whose request was lost is in doubt", aServer, lostRequest},
	{"a write whose answer was lost is in doubt, and was not sent twice", aServer, lostAnswer},
	{"a store that was away is used again", aServer, away},
	{"a list during which the connection fails is whole or ends with an error", aServer, failingList},
	{"errors name the key", nothing, named},
	{"a watch begins with what is there and goes on with each change, as Swap takes them", aWatcher, watched},
	{"the last of several changes comes to a watch, also while nobody reads it", aWatcher, lastOfSeveral},
	{"a context that has ended ends a watch", aWatcher, watchEnds},
	{"a reader may leave a watch at any time", aWatcher, leavesAWatch},
	{"a watch of a server that is silent ends with its context", aServerToWatch, silentWatch},
	{"what changed while a watch was cut off comes in the end, unless it ends with an error", aServerToWatch, cutWatch},
	{"an item for a time is there until then, and is seen to be deleted if it goes", anExpirer, goesInTime},
	{"an item for a time stays if it is replaced before, or if the time is long", anExpirer, staysIfReplaced},
	{"a write for a time is compared, checked and ended as others are", anExpirer, comparedForATime},
	{"a clock shows the server's time, and ends with its context", aClock, tellsTime},
	{"items that are read together are as they are one by one", aBatchGetter, readTogether},
	{"items that are read together have value and note as one write made them", aBatchGetter, togetherOfOneWrite},
	{"a key that is impossible, or a context that has ended, fails a read of several", aBatchGetter, failsTogether},
	{"items that are written together are compared one by one, and their results come in order", nothing, writesTogether},
	{"of writes together of the same items at the same time one wins for each item", nothing, oneOfEach},
	{"writes together whose answer was lost are in doubt, each, and were not sent twice", aServer, lostTogether},
}

var onNodes = []history{
	{"of writes at the same time one wins", nothing, oneWrites},
	{"of first writes at the same time one wins", nothing, oneCreates},
	{"a counter that many increment loses nothing", nothing, counter},
	{"the last of several changes comes to a watch, also while nobody reads it", aWatcher, lastOfSeveral},
	{"a list and the beginning of a watch are whole or end with an error while a replica lags", aReplica, listsWhileAReplicaLags},
	{"while the server or the leader is killed, acknowledged writes stay, and each write happens once at most", aKill, killed},
}

// show is an item on a few lines.
func show(item cas.Item) string {
	return fmt.Sprintf("%q live=%v version=%q number=%d\n  value %s\n  note  %s",
		shorter(item.Key), item.Live, item.Version, item.Number, shorter(string(item.Value)), shorter(string(item.Note)))
}

func shorter(s string) string {
	const limit = 60
	if len(s) <= limit {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:limit], len(s))
}
