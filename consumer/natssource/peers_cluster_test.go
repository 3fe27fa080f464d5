package natssource

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/operate"
)

// This file has the watch of a group while its servers restart, and where one of them refuses a part of it.

// again looks, and attends anew after an error, as a process does.
func (w *watcher) again() (operate.Look, bool) {
	w.rig.t.Helper()
	w.self.Member, _, _ = w.source.Member()
	l, err := w.vigil.Look(inASecond(w.rig.t), w.self)
	if err == nil {
		return l, true
	}
	w.vigil.Close(inASecond(w.rig.t))
	if v, err := w.source.Attend(inASecond(w.rig.t), w.self); err == nil {
		w.vigil = v.(*vigil)
		w.rig.t.Cleanup(func() { v.Close(inTime(w.rig.t)) })
	}
	return operate.Look{}, false
}

// seeAll waits until each sees that all live.
func seeAll(all []*watcher, when string) {
	all[0].rig.t.Helper()
	for _, w := range all {
		eventually(w.rig.t, w.name+" sees all "+when, func() bool {
			l, ok := w.again()
			return ok && l.Members == len(all) && l.Silent == 0 && len(l.Peers) == len(all)-1
		})
	}
}

func TestTheWatchGoesOnAfterARestartOfTheServer(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 40*time.Second)
	all := r.watchers(2)
	ids := []string{all[0].self.Member, all[1].self.Member}
	must(t, r.server.Stop())
	if l, ok := all[0].again(); ok {
		t.Errorf("without a server it sees %+v", l)
	}
	must(t, r.server.Start())
	seeAll(all, "after the restart")
	for n, w := range all {
		if id, _, _ := w.source.Member(); id != ids[n] {
			t.Errorf("%s was %q, and is %q", w.name, ids[n], id)
		}
	}
	all[0].dies()
	p := all[1].sees("m0", "is gone", isLongGone)
	if agreed, err := all[1].vigil.Suspect(inTime(t), all[1].self, p); !agreed || err != nil {
		t.Errorf("%t, %v", agreed, err)
	}
}

// The processes of a node that is down are seen through another one. Two nodes of three agree on a death.
func TestClusterProcessesSeeEachOtherWhileItsNodesRestart(t *testing.T) {
	t.Parallel()
	r, c := newClusterRig(t, 3, 40*time.Second)
	all := r.watchers(3)
	used := map[string]bool{}
	connected := func() {
		for _, w := range all {
			used[w.vigil.nc.ConnectedUrl()] = true
		}
	}
	for n := range c.Nodes() {
		connected()
		must(t, c.Stop(n))
		seeAll(all, "without a node")
		must(t, c.Start(n))
		must(t, c.Await(inTime(t)))
		seeAll(all, "with the node again")
	}
	if connected(); len(used) < 2 {
		t.Errorf("they were connected to %v alone", used)
	}
	must(t, c.Stop(0))
	seeAll(all, "before the death")
	all[0].dies()
	var dead [3]operate.Peer
	for n, w := range all[1:] {
		dead[n+1] = w.sees("m0", "is gone", isLongGone)
	}
	eventually(t, "somebody suspects it", func() bool {
		return slices.ContainsFunc([]int{1, 2}, func(n int) bool {
			agreed, err := all[n].vigil.Suspect(inASecond(t), all[n].self, dead[n])
			return agreed && err == nil
		})
	})
}

// Its process sees others, and they see it. Package consumer says so once, and does not ask again.
func TestAServerThatRefusesASuspicionSaysSo(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	s := natstest.Start(t, withUser(publish, subscribe, []string{"$KV.leases.billing.suspicion"}))
	admin := s.JetStream(t, nats.UserInfo("admin", "admin"))
	source := asUser(t, s, admin)
	runs(t, source)
	self := operate.Peer{Run: "run", Patience: testPatience}
	v, err := source.Attend(inTime(t), self)
	must(t, err)
	defer v.Close(inTime(t))
	o := source.Options
	o.JetStream, o.Logger = admin, slog.New(slog.DiscardHandler)
	other, err := New(o)
	must(t, err)
	runs(t, other)
	dead, err := other.Attend(inTime(t), operate.Peer{Run: "dead", Patience: testPatience})
	must(t, err)
	dead.(*vigil).nc.Close()
	var p operate.Peer
	eventually(t, "the other one is gone", func() bool {
		l, err := v.Look(inTime(t), self)
		must(t, err)
		i := slices.IndexFunc(l.Peers, isLongGone)
		if i >= 0 {
			p = l.Peers[i]
		}
		return i >= 0
	})
	_, err = v.Suspect(inASecond(t), self, p)
	for tries := 1; tries < 5 && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, operate.ErrNoWatch); tries++ { // a machine that stalls keeps the server from saying it
		_, err = v.Suspect(inASecond(t), self, p)
	}
	if !errors.Is(err, operate.ErrNoWatch) || !strings.Contains(err.Error(), "suspicion") {
		t.Errorf("Suspect: %v", err)
	}
}
