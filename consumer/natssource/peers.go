package natssource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

// This file is the watch of a group whose sink has none ([operate.Watch]). A registration has a note while its
// process attends. Processes ask each other for signs, on a connection of their own and by core NATS, which stores
// nothing. The server says at once that a process is gone: nobody subscribes to its subject.

const (
	// lookedAfter is the number of processes that each one looks after: those that follow it in the order of
	// their ids. While one of them is silent and not yet suspected, it looks after all, so that it sees a majority
	// that is silent.
	lookedAfter = 3
	alarmed     = 500 * time.Millisecond

	lateAnswer    = 30 * time.Millisecond // after the server has returned our own question: the next look has it
	answerLimit   = time.Second
	suspectEvery  = time.Second
	reconnectWait = 20 * time.Millisecond // up to twice that, once each server was tried
)

// sign is what a process says of itself: in the note of its registration, and in its answers.
type sign struct {
	Run      string        `json:"run"`
	Host     string        `json:"host,omitempty"`
	Patience time.Duration `json:"patience"` // in nanoseconds
}

func signOf(p operate.Peer) []byte {
	data, _ := json.Marshal(sign{p.Run, p.Host, p.Patience}) // strings and a number
	return data
}

// vigil is this process's part in the watch. It knows processes by [lease.Registered.Process].
type vigil struct {
	s      *Source
	me     string
	prefix string // of the subjects
	nc     *nats.Conn
	store  *natsstore.Store // on nc
	over   context.Context  // ends with the vigil, or if the connection is closed
	fail   context.CancelCauseFunc

	mu   sync.Mutex
	self operate.Peer
	seen map[string]*seen
}

// seen is what this process has seen of another one.
type seen struct {
	sign
	name  string
	heard time.Time // the last answer, or the first question after a time without any
	gone  int       // how often since then the server has said that nobody subscribes
	asked bool      // in the last look

	registration string // the latest
	over         bool   // it was ended by a suspicion

	// unheard says that it has registered again, so that it was alive, and has not answered us since. Until it
	// does, we do not suspect it: it may be that questions cannot reach it from here.
	unheard bool
}

// Attend implements [operate.Watch]. It waits until this process has joined the group.
func (s *Source) Attend(ctx context.Context, self operate.Peer) (operate.Vigil, error) {
	v := &vigil{s: s, seen: map[string]*seen{}}
	v.over, v.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := v.open(ctx, self); err != nil {
		v.Close(ctx)
		return nil, fmt.Errorf("natssource: attend the watch of group %q: %w", s.Group, err)
	}
	return v, nil
}

func (v *vigil) open(ctx context.Context, self operate.Peer) (err error) {
	select {
	case <-v.s.joined:
	case <-ctx.Done():
		return ctx.Err()
	}
	if v.me = (lease.Registered{ID: v.s.member.Registration()}).Process(); v.me == "" {
		return errors.New("this process is not registered")
	}
	v.prefix = "epochfence." + v.s.Bucket + "." + v.s.store.KeyInBucket(cas.Join(v.s.Group)) + "."
	if v.nc, err = v.connect(ctx); err != nil {
		return err
	}
	answer := func(m *nats.Msg) {
		v.mu.Lock()
		defer v.mu.Unlock()
		_ = m.Respond(signOf(v.self)) // or the next question has an answer
	}
	if _, err = v.nc.Subscribe(v.prefix+v.me, answer); err != nil {
		return err
	}
	if _, err = v.Look(ctx, self); err != nil {
		return err
	}
	js, err := jetstream.NewWithAPIPrefix(v.nc, strings.TrimSuffix(jsapi.Prefix(v.s.JetStream), "."))
	if err != nil {
		return err
	}
	if v.store, err = natsstore.Open(ctx, js, natsstore.Options{Bucket: v.s.Bucket}); err == nil {
		v.s.member.Note(string(signOf(self)))
		return nil
	}
	return cmp.Or(context.Cause(v.over), err)
}

// connect opens a connection like the user's, whose callbacks it does not call. When it is lost, it is replaced before
// others have seen that twice. If that takes longer, the next look fails, and the watch is attended anew.
func (v *vigil) connect(ctx context.Context) (*nats.Conn, error) {
	user := v.s.JetStream.Conn()
	o := user.Opts
	o.Name += " (watch)"
	o.InboxPrefix = v.prefix + v.me + ".answers"
	o.Servers = append(slices.Clone(o.Servers), user.DiscoveredServers()...)
	o.AllowReconnect, o.RetryOnFailedConnect, o.NoEcho = true, false, false
	o.MaxReconnect, o.ReconnectBufSize = nats.DefaultMaxReconnect, -1 // a question waits for no connection
	o.ReconnectWait, o.ReconnectJitter, o.ReconnectJitterTLS = reconnectWait, reconnectWait, reconnectWait
	o.CustomReconnectDelayCB, o.ReconnectToServerCB = nil, nil
	o.DisconnectedCB, o.DisconnectedErrCB, o.ConnectedCB, o.ReconnectedCB = nil, nil, nil, nil
	o.DiscoveredServersCB, o.LameDuckModeHandler, o.ReconnectErrCB = nil, nil, nil
	o.ClosedCB = func(*nats.Conn) { v.fail(nats.ErrConnectionClosed) }
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			v.fail(fmt.Errorf("%w: %w; allow it (the package documentation lists what is needed)", operate.ErrNoWatch, err))
		}
	}
	var nc *nats.Conn
	connected := make(chan error, 1)
	go func() { // it tries each server for a while, also after ctx has ended
		made, err := o.Connect()
		if nc = made; err == nil {
			context.AfterFunc(v.over, made.Close)
		}
		connected <- err
	}()
	select {
	case err := <-connected:
		return nc, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements [operate.Vigil]. A process that leaves has left the group before, so that nobody asks it. One
// that lives on says in its registration that it does not answer now. It does not wait for the connection, which may
// be trying a server.
func (v *vigil) Close(context.Context) {
	v.fail(nats.ErrConnectionClosed)
	if v.nc != nil {
		v.s.member.Note("")
	}
}

// Look implements [operate.Vigil].
func (v *vigil) Look(ctx context.Context, self operate.Peer) (operate.Look, error) {
	members := v.s.member.Members() // of a process, the older registrations first
	v.mu.Lock()
	v.self = self
	questions := v.toAsk(members, time.Now())
	v.mu.Unlock()
	err := context.Cause(v.over)
	if err == nil && (len(questions) > 0 || v.store == nil) { // a process that is alone asks itself once
		err = v.ask(ctx, questions)
	}
	if err != nil {
		return operate.Look{}, fmt.Errorf("natssource: look at group %q: %w", v.s.Group, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.look(members, time.Now()), nil
}

// toAsk returns which processes are to be asked now. v.mu is held.
func (v *vigil) toAsk(members []lease.Registered, now time.Time) map[string]*seen {
	latest, alarm, suspected := map[string]lease.Registered{}, false, map[string]bool{}
	for _, r := range members {
		latest[r.Process()] = r
		suspected[r.Process()] = suspected[r.Process()] || r.Suspected != ""
	}
	maps.DeleteFunc(v.seen, func(id string, _ *seen) bool { return latest[id].Note == "" && latest[id].Suspected == "" })
	for id, r := range latest {
		at := v.seen[id]
		switch {
		case id == v.me || at == nil && r.Note == "":
			continue
		case at == nil:
			at = &seen{name: r.Name}
			_ = json.Unmarshal([]byte(r.Note), &at.sign) // a process without a run is not seen
			v.seen[id] = at
		}
		if at.over = r.Suspected != ""; at.registration != r.ID {
			at.registration, at.unheard = r.ID, r.ID != id
		}
		alarm = alarm || at.asked && !at.over && !at.unheard && (at.gone > 0 || now.Sub(at.heard) > alarmed)
	}
	ids := slices.Sorted(maps.Keys(v.seen))
	next, _ := slices.BinarySearch(ids, v.me)
	questions, after := map[string]*seen{}, 0
	for _, id := range slices.Concat(ids[next:], ids[:next]) {
		at := v.seen[id]
		was := at.asked
		if at.asked = after < lookedAfter || alarm || suspected[id]; at.asked {
			questions[id] = at
			if !was {
				at.heard, at.gone = now, 0
			}
		}
		if !at.over {
			after++
		}
	}
	return questions
}

// ask asks, and waits for the answers. If the server does not return our own question, we know nothing of others.
func (v *vigil) ask(ctx context.Context, questions map[string]*seen) error {
	answered := make(chan struct{}, len(questions))
	for id, at := range questions {
		go func() {
			v.askOne(id, at)
			answered <- struct{}{}
		}()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(v.over, func() { cancel(context.Cause(v.over)) })()
	own, err := v.nc.RequestWithContext(ctx, v.prefix+v.me, nil)
	var s sign
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case err != nil: // perhaps as the connection was closed, for what has ended the vigil
		return cmp.Or(context.Cause(v.over), err)
	case json.Unmarshal(own.Data, &s) != nil || s.Run != v.self.Run:
		return fmt.Errorf("%w: somebody else answers questions to %s%s", operate.ErrNoWatch, v.prefix, v.me)
	}
	late := time.NewTimer(lateAnswer)
	defer late.Stop()
	for range questions {
		select {
		case <-answered:
		case <-late.C:
			return nil
		}
	}
	return nil
}

func (v *vigil) askOne(id string, at *seen) {
	ctx, cancel := context.WithTimeout(v.over, answerLimit)
	defer cancel()
	m, err := v.nc.RequestWithContext(ctx, v.prefix+id, nil)
	v.mu.Lock()
	defer v.mu.Unlock()
	var s sign
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		at.gone++
	case err == nil && json.Unmarshal(m.Data, &s) == nil && s.Run != "":
		at.sign, at.gone, at.unheard, at.heard = s, 0, false, time.Now()
	}
}

// look returns what there is to see. v.mu is held.
func (v *vigil) look(members []lease.Registered, now time.Time) (l operate.Look) {
	peers := map[string]*operate.Peer{}
	for _, r := range members {
		id := r.Process()
		p, at := peers[id], v.seen[id]
		switch {
		case p != nil:
		case id == v.me:
			p = &operate.Peer{Run: v.self.Run, Name: v.self.Name, Host: v.self.Host, Patience: v.self.Patience}
		case at == nil || at.Run == "":
			continue
		default:
			p = &operate.Peer{Run: at.Run, Name: at.name, Host: at.Host, Patience: at.Patience, Silent: now.Sub(at.heard), Gone: at.gone > 0}
			if at.unheard && at.Host != v.self.Host { // on our host it may be our dead predecessor
				p.Patience = 0
			}
		}
		peers[id], p.Group, p.Member = p, v.s.Group, r.ID
		if r.Suspected != "" {
			p.Suspected, p.By = r.ID, r.Suspected
		}
	}
	for id, p := range peers {
		asked := id != v.me && v.seen[id].asked
		if p.Member != p.Suspected {
			l.Members++
			if asked && !v.seen[id].unheard && (p.Gone || p.Silent > p.Patience/2) {
				l.Silent++ // early, as those that are asked only since one is silent count, too
			}
		}
		if asked || p.Suspected != "" {
			l.Peers = append(l.Peers, *p)
		}
	}
	return l
}

// Suspect implements [operate.Vigil].
func (v *vigil) Suspect(ctx context.Context, by, p operate.Peer) (bool, error) {
	v.mu.Lock()
	at := v.seen[lease.Registered{ID: p.Member}.Process()]
	mayLive := at == nil || at.gone == 0 && time.Since(at.heard) < p.Silent || at.gone == 1 && p.Silent <= p.Patience // two looks saw one answer
	v.mu.Unlock()
	if mayLive {
		return false, nil
	}
	// The item lasts for a second, and nobody else can write it meanwhile.
	was, err := v.store.Get(ctx, cas.Join(v.s.Group, "suspicion"))
	if err == nil && !was.Live {
		data, _ := json.Marshal(map[string]string{"member": p.Member, "name": p.Name, "by": by.Name}) // strings
		_, err = v.store.SwapFor(ctx, was, data, suspectEvery)
	}
	if cause := context.Cause(v.over); err != nil && errors.Is(cause, operate.ErrNoWatch) {
		err = cause // a permission that is missing, for which no answer comes
	}
	if err != nil && !errors.Is(err, cas.ErrConflict) {
		return false, fmt.Errorf("natssource: suspect a member of group %q: %w", v.s.Group, err)
	}
	return err == nil && !was.Live, nil
}
