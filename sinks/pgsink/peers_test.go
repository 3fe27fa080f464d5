package pgsink_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// peer is the n-th process of a group, on a host of its own, as nobody else of these tests is.
func peer(n int) operate.Peer {
	return operate.Peer{
		Group: "billing", Run: fmt.Sprintf("run-%03d", n), Name: fmt.Sprintf("host-%d-1", n), Host: fmt.Sprintf("host-%d", n),
		Member: fmt.Sprintf("member-%d", n), Patience: 1500 * time.Millisecond,
	}
}

// patient is a peer whom no stall of the machine makes silent.
func patient(n int) operate.Peer {
	p := peer(n)
	p.Patience = time.Minute
	return p
}

// watching is a vigil and who keeps it.
type watching struct {
	*rig
	operate.Vigil
	self operate.Peer
}

func (r *rig) watch(w operate.Watch, self operate.Peer) *watching {
	r.Helper()
	v, err := w.Attend(r.Context(), self)
	must(r, err)
	r.Cleanup(func() { v.Close(context.Background()) })
	return &watching{r, v, self}
}

func (w *watching) look() operate.Look {
	w.Helper()
	l, err := w.Look(w.Context(), w.self)
	must(w, err)
	return l
}

// sees returns what w sees of a peer, if anything.
func (w *watching) sees(other operate.Peer) (operate.Peer, bool) {
	w.Helper()
	return find(w.look(), other)
}

func find(l operate.Look, other operate.Peer) (operate.Peer, bool) {
	i := slices.IndexFunc(l.Peers, func(p operate.Peer) bool { return p.Run == other.Run })
	if i < 0 {
		return operate.Peer{}, false
	}
	return l.Peers[i], true
}

// until looks until holds is true of what w sees of a peer.
func (w *watching) until(what string, other operate.Peer, holds func(operate.Peer) bool) (operate.Peer, time.Duration) {
	w.Helper()
	began := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for {
		if p, ok := w.sees(other); ok && holds(p) {
			return p, time.Since(began)
		}
		select {
		case <-tick.C:
		case <-limit:
			p, ok := w.sees(other)
			w.Fatalf("%s: not within 20 s; %+v, %t", what, p, ok)
		}
	}
}

func TestProcessesOfAGroupSeeEachOtherAndNoOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	a := r.watch(s, peer(1))
	if l := a.look(); l.Members != 1 || l.Silent != 0 || len(l.Peers) != 0 {
		t.Errorf("alone it sees %+v", l)
	}
	b := r.watch(s.Queued(), peer(2))
	stranger := peer(3)
	stranger.Group = "shipping"
	r.watch(s, stranger)
	joining := peer(4)
	joining.Member = ""
	r.watch(s, joining)
	l := a.look()
	got, ok := find(l, peer(2))
	if got.Silent = 0; !ok || got != peer(2) || len(l.Peers) != 1 || l.Members != 2 {
		t.Errorf("it sees %+v", l)
	}
	b.self.Member, b.self.Patience = "member-2b", time.Minute
	b.look()
	if got, _ := a.sees(b.self); got.Member != "member-2b" || got.Patience != time.Minute {
		t.Errorf("after b is another member: %+v", got)
	}
	b.Close(t.Context())
	if _, ok := a.sees(b.self); ok {
		t.Error("a process that said goodbye is seen")
	}
}

// A process that gives no sign is silent for longer and longer; its connection is there.
func TestAFrozenProcessIsSilentAndNotGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	a := r.watch(s, peer(1))
	r.watch(s, peer(2))
	p, _ := a.until("silence", peer(2), func(p operate.Peer) bool { return p.Silent > p.Patience })
	if l := a.look(); p.Gone || l.Members != 2 || l.Silent != 1 {
		t.Errorf("%+v of %+v", p, l)
	}
}

func TestASignIsRenewedAfterHalfASecondAndNotBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	a, b := r.watch(s, peer(1)), r.watch(s, peer(2))
	a.until("an age that no look of b ends", peer(2), func(p operate.Peer) bool { return p.Silent > 100*time.Millisecond })
	const signed = "select signed_at > $1::timestamptz from epochfence.peer_sign where run = 'run-002'"
	var was time.Time
	must(t, r.admin.QueryRow(t.Context(), "select signed_at from epochfence.peer_sign where run = 'run-002'").Scan(&was))
	var renewed bool
	for !renewed {
		b.look()
		must(t, r.admin.QueryRow(t.Context(), signed, was).Scan(&renewed))
		var age time.Duration
		must(t, r.admin.QueryRow(t.Context(), "select clock_timestamp() - $1::timestamptz", was).Scan(&age))
		if renewed && age < 500*time.Millisecond {
			t.Errorf("renewed after %v", age)
		}
	}
}

func TestALostConnectionIsSeenAtOnceUntilTheProcessIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.watch(r.open(), peer(1))
	b := r.watch(r.open(), peer(2))
	if p, ok := a.sees(peer(2)); !ok || p.Gone {
		t.Fatalf("%+v, %t", p, ok)
	}
	r.sql(fmt.Sprintf("select pg_terminate_backend(%d)", r.backendOf(b)))
	p, took := a.until("the end", peer(2), func(p operate.Peer) bool { return p.Gone })
	if l := a.look(); l.Silent != 1 {
		t.Errorf("%+v", l)
	}
	t.Logf("seen after %v", took)
	if _, err := b.Look(t.Context(), b.self); err == nil {
		t.Fatal("a look on a lost connection succeeds")
	}
	b.Vigil.Close(t.Context())
	if _, ok := a.sees(peer(2)); !ok {
		t.Fatal("a goodbye over a lost connection arrived")
	}
	r.watch(r.open(), peer(2))
	if ours, err := a.Suspect(t.Context(), a.self, p); ours || err != nil {
		t.Errorf("who has signed since is suspected: %t, %v", ours, err)
	}
	if p, ok := a.sees(peer(2)); !ok || p.Gone {
		t.Errorf("back, it is %+v, %t", p, ok)
	}
}

// backendOf is the server process that has the lock of a vigil's session.
func (r *rig) backendOf(w *watching) (pid int) {
	r.Helper()
	must(r, r.admin.QueryRow(r.Context(), `select l.pid from epochfence.peer p join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1
		and l.classid::bigint = (p.session_key >> 32) and l.objid::bigint = p.session_key & 4294967295
		where p.run = $1`, w.self.Run).Scan(&pid))
	return pid
}

func TestOneOfTenSuspicionsASecondIsToBeActedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	var all []*watching
	for n := range 12 {
		all = append(all, r.watch(s, peer(n)))
	}
	// Everybody sees those that were suspected lately, here under an earlier member id.
	r.sql("update epochfence.peer set suspected = 'earlier', suspected_at = clock_timestamp() where run >= 'run-009'")
	victim := func(n int) operate.Peer {
		p, _ := all[0].until("silence", peer(n), func(p operate.Peer) bool { return p.Silent > time.Second })
		return p
	}
	race := func(p operate.Peer) (won []string) {
		var mu sync.Mutex
		var racing sync.WaitGroup
		for _, w := range all[:10] {
			w.sees(p)
			racing.Go(func() {
				ours, err := w.Suspect(t.Context(), w.self, p)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if ours {
					won = append(won, w.self.Name)
				}
			})
		}
		racing.Wait()
		return won
	}
	last, first := victim(11), victim(10)
	began := time.Now()
	won := race(last)
	if len(won) != 1 {
		t.Fatalf("%q won", won)
	}
	if p, ok := all[3].sees(last); !ok || p.Suspected != last.Member || p.By != won[0] {
		t.Errorf("one far away in the ring sees %+v, %t", p, ok)
	}
	if l := all[3].look(); l.Members != 11 {
		t.Errorf("%d members", l.Members)
	}
	again := race(first)
	if len(again) != 0 && time.Since(began) < time.Second {
		t.Errorf("within a second %q won", again)
	}
	if len(again) == 0 { // a machine that stalls may have let the second pass
		r.sql("update epochfence.peer_suspicion set last_at = last_at - interval '1 s'")
		again = race(first)
	}
	if len(again) != 1 {
		t.Errorf("a second later %q won", again)
	}
	r.sql("update epochfence.peer_suspicion set last_at = last_at - interval '1 s'")
	other := victim(9)
	other.Member = "who it was"
	if again := race(other); len(again) != 0 {
		t.Errorf("under another member id: %q won", again)
	}
}

// Each of a hundred sees three, each is seen by three, and of those that are suspected everybody hears.
func TestEachOfAHundredLooksAfterThree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	absent(r, 99)
	a := r.watch(s, peer(50))
	if l := a.look(); l.Members != 100 || l.Silent != 3 || len(l.Peers) != 3 {
		t.Errorf("%+v", l)
	}
	for _, n := range []int{51, 52, 53} {
		if p, ok := a.sees(peer(n)); !ok || !p.Gone {
			t.Errorf("peer %d: %+v, %t", n, p, ok)
		}
	}
	last := r.watch(s, peer(200))
	if _, ok := last.sees(peer(0)); !ok {
		t.Error("the last does not see the first")
	}
	r.sql(`update epochfence.peer set suspected = member, suspected_at = clock_timestamp() - interval '30 s' where run = 'run-051';
		update epochfence.peer set suspected = member, suspected_at = clock_timestamp() - interval '61 s' where run = 'run-052';
		update epochfence.peer set patience = 0 where run = 'run-053';
		update epochfence.peer set member = '' where run = 'run-054'`)
	var names []string
	l := a.look()
	for _, p := range l.Peers {
		names = append(names, p.Run)
	}
	slices.Sort(names)
	if want := []string{"run-051", "run-055", "run-056", "run-057"}; !slices.Equal(names, want) || l.Members != 98 {
		t.Errorf("%q of %d; want %q", names, l.Members, want)
	}
	r.sql("update epochfence.peer_sign set signed_at = signed_at - interval '11 minutes' where run <> 'run-050'")
	if l := a.look(); l.Members != 1 || len(l.Peers) != 0 {
		t.Errorf("eleven minutes later: %+v", l)
	}
}

// The rest of a group whose majority has died is the group, once the source has removed the dead after its own
// timeout: it suspects again.
func TestWhoIsSilentForAMinuteAfterItsPatienceIsNoMemberAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	absent(r, 9)
	a := r.watch(s, peer(50))
	r.watch(s, patient(51))
	// The patience of the dead is a minute.
	r.sql("update epochfence.peer_sign set signed_at = signed_at - interval '90 s' where run < 'run-050'")
	if l := a.look(); l.Members != 12 {
		t.Errorf("after less than two minutes: %d members, want 12", l.Members)
	}
	r.sql("update epochfence.peer_sign set signed_at = signed_at - interval '31 s' where run < 'run-050'")
	l := a.look()
	if p, ok := find(l, patient(51)); !ok || p.Gone || l.Members != 2 || l.Silent != 0 || len(l.Peers) != 1 {
		t.Errorf("after two minutes: %+v", l)
	}
}

func TestAProcessSeesThatItWasSuspected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	a, b := r.watch(s, peer(1)), r.watch(s, patient(2))
	if p, ok := b.sees(b.self); ok {
		t.Errorf("unsuspected it sees itself: %+v", p)
	}
	p, ok := a.sees(b.self)
	if ours, err := a.Suspect(t.Context(), a.self, p); !ok || !ours || err != nil {
		t.Fatalf("%t, %t, %v", ok, ours, err)
	}
	l := b.look()
	if p, ok := find(l, b.self); !ok || p.Suspected != b.self.Member || p.By != a.self.Name || p.Gone || l.Members != 1 {
		t.Errorf("it sees itself: %t, in %+v", ok, l)
	}
}

// absent adds processes that no longer have a connection.
func absent(r *rig, n int) {
	r.Helper()
	r.sql(fmt.Sprintf(`
		insert into epochfence.peer (group_name, run, name, host, member, patience, session_key)
			select 'billing', 'run-' || lpad(i::text, 3, '0'), 'host-' || i || '-1', 'host-' || i, 'member-' || i, 60000000, 1000 + i
			from generate_series(0, %d) i where i <> 50 on conflict do nothing;
		insert into epochfence.peer_sign select group_name, run, clock_timestamp() from epochfence.peer p
			where not exists (select from epochfence.peer_sign s where s.run = p.run)`, n))
}

// The ghost is before the process in the ring and behind more than three others.
func TestTheGhostsOfAHostAreSeenWhereverTheyAreInTheRing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	absent(r, 99)
	r.sql(`update epochfence.peer set host = 'host-50', name = 'host-50-1' where run in ('run-010', 'run-020');
		update epochfence.peer set session_key = null where run = 'run-020'`)
	a := r.watch(s, peer(50))
	if p, ok := a.sees(peer(10)); !ok || !p.Gone || p.Host != a.self.Host {
		t.Errorf("%+v, %t", p, ok)
	}
	if p, ok := a.sees(peer(20)); ok {
		t.Errorf("a living one: %+v", p)
	}
}

func TestRowsOfTheDeadAreDeletedNowAndThen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.watch(r.open(), peer(1000))
	absent(r, 99)
	r.sql("update epochfence.peer_sign set signed_at = signed_at - interval '11 minutes' where run < 'run-090'")
	left := 100
	for range 5000 {
		r.sql("update epochfence.peer_sign set signed_at = signed_at - interval '1 s' where run = 'run-1000'")
		a.look()
		must(t, r.admin.QueryRow(t.Context(), "select count(*) from epochfence.peer p join epochfence.peer_sign s using (run) where p.run <> 'run-1000'").Scan(&left))
		if left < 99 {
			break
		}
	}
	if left != 10 {
		t.Errorf("%d are left, want 10", left)
	}
}

// Behind a pooler no session is this process's alone: a lock would be another client's the next moment.
func TestBehindPgBouncerThereAreAgesAndNoLocks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := pgtest.StartBouncer(t, r.appURL)
	s := r.openOn(newPool(t, b.URL, neverCancels, modes["exec"]))
	a := r.watch(s, peer(1))
	r.watch(s, peer(2))
	p, _ := a.until("silence", peer(2), func(p operate.Peer) bool { return p.Silent > p.Patience })
	if p.Gone {
		t.Error("it is gone")
	}
	var locks, keys int
	must(t, r.admin.QueryRow(t.Context(), `select (select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())),
		(select count(session_key) from epochfence.peer)`).Scan(&locks, &keys))
	if locks != 0 || keys != 0 {
		t.Errorf("%d locks, %d keys", locks, keys)
	}
	if ours, err := a.Suspect(t.Context(), a.self, p); !ours || err != nil {
		t.Errorf("Suspect = %t, %v", ours, err)
	}
}

// The tables are not logged. After a crash they are empty, and who attends again is alone at first.
func TestAfterACrashOfTheServerEverybodySignsAgain(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true})
	r := newRigOn(t, server.Database(t), "")
	s := r.open()
	a, b := r.watch(s, peer(1)), r.watch(s, peer(2))
	must(t, server.Stop(pgtest.Immediate))
	for _, w := range []*watching{a, b} {
		if _, err := w.Look(t.Context(), w.self); err == nil {
			t.Fatal("a look at a server that is down succeeds")
		}
	}
	must(t, server.Start(t.Context()))
	a = r.watch(s, peer(1))
	if l := a.look(); l.Members != 1 {
		t.Errorf("%+v", l)
	}
	r.watch(s, peer(2))
	if p, ok := a.sees(peer(2)); !ok || p.Gone {
		t.Errorf("%+v, %t", p, ok)
	}
}

func TestASchemaOrARoleWithoutTheFunctionsHasNoWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	r.sql("revoke execute on function epochfence.look_at_peers from " + r.role)
	_, err := s.Attend(t.Context(), peer(1))
	want(t, err, operate.ErrNoWatch)
	r.sql("drop function epochfence.look_at_peers")
	_, err = s.Attend(t.Context(), peer(1))
	want(t, err, operate.ErrNoWatch)
	r.eventually("their connections are closed", "select count(*) = 0 from pg_stat_activity where application_name = 'watch' and datname = current_database()")
}

func TestARoleThatMayNotSuspectLooksAndSigns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	a := r.watch(s, peer(1))
	r.watch(s, peer(2))
	r.sql("revoke execute on function epochfence.suspect_peer from " + r.role)
	p, ok := a.sees(peer(2))
	if !ok {
		t.Fatal("it does not see b")
	}
	_, err := a.Suspect(t.Context(), a.self, p)
	want(t, err, operate.ErrNoWatch)
	if p, ok := a.sees(peer(2)); !ok || p.Suspected != "" {
		t.Errorf("then it sees %+v, %t", p, ok)
	}
}

// As for a password that changes: each connection is made as the pool would make it.
func TestTheWatchConnectsAsThePoolDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var made []string
	s := r.openOn(r.pool(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "shop"
		right := c.ConnConfig.User
		c.ConnConfig.User = "nobody"
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.User = right
			made = append(made, c.RuntimeParams["application_name"])
			return nil
		}
	}))
	r.watch(s, peer(1))
	if !slices.Contains(made, "shop watch") {
		t.Errorf("%q", made)
	}
}

func TestTheFirstShardIsWhereProcessesSeeEachOther(t *testing.T) {
	t.Parallel()
	one, two := newRig(t), newRig(t)
	sharded, err := shardsink.New(shardsink.ByNumber, epoch.Sink[pgsink.Tx](one.open()), epoch.Sink[pgsink.Tx](two.open()))
	must(t, err)
	w, ok := epoch.As[operate.Watch](sharded)
	if !ok {
		t.Fatal("no Watch")
	}
	a := one.watch(w, peer(1))
	one.watch(one.open(), peer(2))
	if _, ok := a.sees(peer(2)); !ok {
		t.Error("it does not see who attends in the first shard")
	}
}

const watchEnv = "EPOCHFENCE_TEST_WATCH"

// A process that is killed without a word is gone as soon as the server has noticed.
func TestAKilledProcessIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	if spec := os.Getenv(watchEnv); spec != "" {
		attendForEver(t, spec)
		return
	}
	r := newRig(t)
	a := r.watch(r.open(), peer(1))
	victim := patient(2)
	spec, err := json.Marshal([]string{r.appURL})
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestAKilledProcessIsGoneAtOnce$", "-test.v")
	cmd.Env = append(os.Environ(), watchEnv+"="+string(spec))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "attending" {
		t.Log(lines.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if p, ok := a.sees(victim); !ok || p.Gone {
		t.Fatalf("%+v, %t", p, ok)
	}
	must(t, cmd.Process.Kill())
	p, took := a.until("the end", victim, func(p operate.Peer) bool { return p.Gone })
	if t.Logf("seen %v after the kill, by an age of %v", took, p.Silent); p.Silent > p.Patience {
		t.Error("the silence would have shown it, too")
	}
}

func attendForEver(t *testing.T, spec string) {
	var urls []string
	must(t, json.Unmarshal([]byte(spec), &urls))
	pool := newPool(t, urls[0])
	s, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	v, err := s.Attend(t.Context(), patient(2))
	must(t, err)
	fmt.Println("attending")
	for range time.Tick(100 * time.Millisecond) {
		_, err := v.Look(t.Context(), patient(2))
		must(t, err)
	}
}

// A transaction that holds a snapshot keeps all earlier signs.
func TestAnOldSnapshotDoesNotSlowLooks(t *testing.T) {
	t.Parallel()
	c := newCommitting(t)
	absent(c.rig, 10)
	c.holdSnapshot(t)
	c.signOften(20_000)
	conn := c.db.Superuser(t)
	var read []int
	for range 50 {
		read = append(read, explain(t, conn, "select epochfence.look_at_peers('billing', 'run-001', '', '', 'member-1', 1500000, null)"))
	}
	slices.Sort(read)
	if t.Logf("a look reads %v pages", read); read[25] > 150 {
		t.Errorf("half of the looks read %d pages or more; want no more than 150", read[25])
	}
}

// signOften has the first ten processes sign that many times in all.
func (r *rig) signOften(times int) {
	r.Helper()
	r.sql(fmt.Sprintf(`do $$ begin for i in 1..%d loop
		update epochfence.peer_sign set signed_at = clock_timestamp() where ctid = (epochfence.last_sign('billing', 'run-00' || i %% 10)).place;
		end loop; end $$`, times))
}

// BenchmarkLook is what a look costs in groups of 1, 10 and 100, also while somebody holds a snapshot that
// keeps all earlier signs.
func BenchmarkLook(b *testing.B) {
	for _, held := range []int{0, 100_000} {
		for _, n := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("dead-%d/processes-%d", held, n), func(b *testing.B) {
				r := newRig(b)
				s := r.open()
				var all []*watching
				for i := range min(n, 10) {
					all = append(all, r.watch(s, peer(i)))
				}
				if n > 10 {
					absent(r, n)
				}
				if held > 0 {
					hold := r.db.Superuser(b)
					for _, sql := range []string{"begin isolation level repeatable read", "select from epochfence.peer"} {
						_, err := hold.Exec(b.Context(), sql)
						must(b, err)
					}
					r.signOften(held)
				}
				for b.Loop() {
					all[0].look()
				}
			})
		}
	}
}
