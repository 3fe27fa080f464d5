package locktest

import (
	"encoding/gob"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
)

// request is for a store, or for a rig.
type request struct {
	Do          string
	Number      int    // of the store or the rig
	Key         string // or prefix
	Seen        cas.Item
	Value, Note []byte
}

// answer is one of a request's. List and Watch have several.
type answer struct {
	Item  cas.Item
	Facts cas.Facts
	Error string
	Is    int // of which of sentinels, from 1

	Number int // of the store or rig that was opened

	Watches, BacksUp, Strands bool
}

// What callers tell apart.
var sentinels = []error{cas.ErrConflict, cas.ErrTooLarge, cas.ErrFull, cas.ErrUnsuitable, cas.ErrKey, cas.ErrForeign}

func (a *answer) fails(err error) {
	if err == nil {
		return
	}
	a.Error = err.Error()
	a.Is = 1 + slices.IndexFunc(sentinels, func(is error) bool { return errors.Is(err, is) })
}

// server serves rigs and their stores. Each store has a client of its own, as in another process.
type server struct {
	t      testing.TB
	create func(t testing.TB) castest.Rig
	first  chan castest.Rig

	mu     sync.Mutex // not held while something starts
	rigs   []*served
	stores []cas.Store
}

type served struct {
	castest.Rig
	mu   sync.Mutex
	back func() // from the backup
}

func (r *served) backup(t testing.TB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back = r.Backup(t)
}

func (r *served) restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back()
}

// newServer creates the first rig, for which t may be skipped.
func newServer(t testing.TB, create func(t testing.TB) castest.Rig) *server {
	s := &server{t: t, create: create, first: make(chan castest.Rig, 1)}
	s.first <- create(t)
	return s
}

func (s *server) addRig() answer {
	var r castest.Rig
	select {
	case r = <-s.first:
	default:
		r = s.create(s.t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rigs = append(s.rigs, &served{Rig: r})
	return answer{Number: len(s.rigs) - 1, BacksUp: r.Backup != nil, Strands: r.Strands}
}

func (s *server) addStore(r *served) answer {
	store := r.Open(s.t, func(address string) string { return address })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stores = append(s.stores, store)
	_, watches := store.(cas.Watcher)
	return answer{Number: len(s.stores) - 1, Watches: watches}
}

func (s *server) rig(n int) *served {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rigs[n]
}

func (s *server) store(n int) cas.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stores[n]
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q request
	if err := gob.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	to, flush := gob.NewEncoder(w), http.NewResponseController(w)
	tell := func(a answer, err error) bool {
		a.fails(err)
		return errors.Join(to.Encode(a), flush.Flush()) == nil
	}
	ctx := r.Context() // ends when the program gives up the request
	switch q.Do {
	case "rig":
		tell(s.addRig(), nil)
		return
	case "open":
		tell(s.addStore(s.rig(q.Number)), nil)
		return
	case "backup":
		s.rig(q.Number).backup(s.t)
		tell(answer{}, nil)
		return
	case "restore":
		s.rig(q.Number).restore()
		tell(answer{}, nil)
		return
	}
	store := s.store(q.Number)
	each := func(item cas.Item, err error) bool { return tell(answer{Item: item}, err) }
	switch q.Do {
	case "facts":
		f, err := store.Facts(ctx)
		tell(answer{Facts: f}, err)
	case "get":
		each(store.Get(ctx, q.Key))
	case "swap":
		each(store.Swap(ctx, q.Seen, q.Value, q.Note))
	case "delete":
		tell(answer{}, store.Delete(ctx, q.Seen))
	case "list":
		store.List(ctx, q.Key)(each)
	case "watch":
		store.(cas.Watcher).Watch(ctx, q.Key)(each)
	}
}
