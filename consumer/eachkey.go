package consumer

import (
	"sync"

	"github.com/epochfence/epochfence/consumer/internal/stacks"
)

// This file runs the calls of one transaction beside each other: which may begin, and when. The sink gives each
// call a view of the transaction (epoch.TxOptions.Beside). What a failure means is decided as for calls in order:
// the first one counts, everything is rolled back, and what is narrowed down and fails again runs in order.

// EachKey returns Handlers that call handle for each message, for up to n messages of a transaction at a time.
// Messages of a partition that have the same key are handled in order, and those of other keys beside them.
// Messages without a key have the same key, the empty one. A key means nothing across partitions.
//
// Use it if handlers wait, for another service or for the database: what n of them wait for passes at the same
// time, in a transaction as large as before, with one position, one check of the fence and one commit. Handlers
// that share memory have to lock it. One that fails rolls back the writes of all. The next transaction takes the
// messages before it, and then it is alone. OnFailure, replays and what has failed twice run in order, as with
// [Each].
//
// The sink must run calls beside each other ([epoch.Facts]): pgsink does, on one connection, and memsink. If n is
// 1, any sink will do. A handler that holds the connection, by rows that it has not closed or a savepoint, makes
// the others wait: do not wait for another handler meanwhile. If calls for several partitions hang, each counts for
// [Options.MaxHung].
func EachKey[TX any](handle Handler[TX], n int) Handlers[TX] {
	return Handlers[TX]{each: handle, beside: n}
}

// keyed are the calls of a transaction, of which several may run.
type keyed struct {
	next       []int    // by call: the next one with its key, or 0
	goroutines []string // by call: who runs it
	ready      chan int // calls that may begin; has room for all

	mu   sync.Mutex
	left int // calls that have not returned
	err  error
}

// besideEachOther returns [epoch.TxOptions.Beside] for the transaction, or nil if its calls run in order. It
// numbers the calls as [transaction.placeOf] does.
func (t *transaction) besideEachOther() func(calls int, call func(i int) error) error {
	type key struct {
		part int
		key  string
	}
	n := t.calls()
	if t.run.beside <= 1 || n <= 1 || t.parts[0].inOrder {
		return nil
	}
	k := &keyed{next: make([]int, n), goroutines: make([]string, n), ready: make(chan int, n), left: n}
	last, call := map[key]int{}, 0
	for i := range t.parts {
		for _, m := range t.parts[i].messages {
			of := key{i, string(m.Key)}
			if before, is := last[of]; is {
				k.next[before] = call
			} else {
				k.ready <- call
			}
			last[of] = call
			call++
		}
	}
	t.keyed = k
	workers := min(t.run.beside, len(last))
	return func(_ int, call func(i int) error) error {
		var all sync.WaitGroup
		for range workers {
			all.Go(func() { k.work(call) })
		}
		all.Wait()
		return k.err
	}
}

// work runs calls until none is left that may begin.
func (k *keyed) work(call func(i int) error) {
	name := stacks.Name()
	for i := range k.ready {
		k.goroutines[i] = name
		err := errGoexit
		func() {
			defer func() { k.ended(i, err) }()
			err = call(i)
		}()
	}
}

// ended lets the next call with the key begin. After a failure, none begins.
func (k *keyed) ended(i int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left--
	switch {
	case k.err != nil:
	case err != nil, k.left == 0:
		k.err = err
		close(k.ready)
		for range k.ready { // they may not begin any more
		}
	case k.next[i] > 0:
		k.ready <- k.next[i]
	}
}

// rounds is how many messages each of the calls that run beside each other has in the first transaction.
const rounds = 2

// beside returns s for transactions of which n calls run at a time. Handlers that wait beside each other do not
// make a transaction slower, so fewer messages would not make it faster.
func (s sizing) beside(n int) sizing {
	s.first = min(max(s.first, rounds*n), s.most)
	s.capacity = s.first
	return s
}
