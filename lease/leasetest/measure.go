package leasetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/castest"
)

// RowsEnv names the directory into which [Measure] writes a file for each store.
const RowsEnv = "EPOCHFENCE_LEASE_ROWS"

// Row is what docs/leases.md says of leases on a store.
type Row struct {
	Store  string // with its version
	Number string // what a generation is
	Needs  string // what the store's settings must be

	// Measured. Times are in TTLs.
	Killed   float64 // from when a member is cut off until the last of its resources is taken
	Released float64 // from when a member leaves in order until the last of its resources is taken
	Calls    float64 // calls of the store in a TTL, of all members together, while nothing happens

	// Measured, in milliseconds: the medians for a lock that nobody else wants, by a member that holds
	// nothing else. PerSecond is how often it has acquired and released 16 such locks at once, in a second.
	Acquire, Release, PerSecond float64
}

const (
	measuredMembers   = 3
	measuredResources = 200
	measuredLocks     = 200
	measuredAtOnce    = 16
)

// Measure fills a row and writes it, if [RowsEnv] is set.
func Measure(t *testing.T, row Row, create func(t testing.TB) castest.Rig) {
	dir := os.Getenv(RowsEnv)
	if dir == "" {
		t.Skip("measures for docs/leases.md; set " + RowsEnv + " to a directory")
	}
	const ttl = 3 * time.Second
	w := newWorld(t, "billing", ttl, create(t))
	var all []*member
	for n := range measuredMembers {
		all = append(all, w.join(fmt.Sprint("m", n), serving(measuredResources)).run())
	}
	w.until("all is leased in equal shares", func() bool { return w.even(all) })
	w.sleep(2 * ttl)

	const idle = 4
	before := calls(all)
	w.sleep(idle * ttl)
	row.Calls = float64(calls(all)-before) / idle

	row.Killed = w.takeover(all[1:], func() { all[0].cut() })
	all[0].mend()
	w.until("all is leased in equal shares again", func() bool { return w.even(all) })
	row.Released = w.takeover(all[:2], func() { go all[2].leave() })

	all[0].leave()
	all[1].leave()
	alone := w.join("alone")
	row.Acquire, row.Release = w.locking(alone, lock)
	row.PerSecond = w.together(alone)

	data, err := json.MarshalIndent(row, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(strings.ReplaceAll(row.Store, ", ", "-")) + ".json"
	if err := os.WriteFile(filepath.Join(dir, name), append(data, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", row)
}

func calls(all []*member) int {
	n := 0
	for _, m := range all {
		m.mu.Lock()
		n += m.counted
		m.mu.Unlock()
	}
	return n
}

func (w *world) even(members []*member) bool {
	has := w.has()
	var n []int
	sum := 0
	for _, m := range members {
		n, sum = append(n, has[m.Owner()]), sum+has[m.Owner()]
	}
	return sum == measuredResources && slices.Max(n)-slices.Min(n) <= 1
}

// takeover returns after how many TTLs the members that stay have all resources.
func (w *world) takeover(stay []*member, leaves func()) float64 {
	at := time.Now()
	leaves()
	w.until("the others have all", func() bool { return w.even(stay) })
	return time.Since(at).Seconds() / w.ttl.Seconds()
}

// locking returns the median milliseconds of m's calls for a lock that is free.
func (w *world) locking(m *member, free string) (acquire, release float64) {
	var acquires, releases []time.Duration
	for range measuredLocks {
		at := time.Now()
		h, err := m.Acquire(w.ctx, free)
		acquires = append(acquires, time.Since(at))
		if at = time.Now(); err == nil {
			err = h.Release(w.ctx)
		}
		if releases = append(releases, time.Since(at)); err != nil {
			w.Errorf("%s: %v", m.name, err)
		}
	}
	return median(acquires), median(releases)
}

// together returns how often a second m acquires and releases locks that are free, several at once.
func (w *world) together(m *member) float64 {
	var work sync.WaitGroup
	at := time.Now()
	for n := range measuredAtOnce {
		work.Go(func() { w.locking(m, fmt.Sprint(lock, n)) })
	}
	work.Wait()
	return measuredAtOnce * measuredLocks / time.Since(at).Seconds()
}

func median(of []time.Duration) float64 {
	slices.Sort(of)
	return float64(of[len(of)/2].Microseconds()) / 1000
}
