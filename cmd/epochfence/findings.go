package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides what is wrong with groups, partitions and the outbox, for check and doctor. It
// changes nothing.

type finding struct {
	Check     string `json:"check"`
	Status    status `json:"status"`
	Partition string `json:"partition,omitempty"`
	Detail    string `json:"detail"`
	Remedy    string `json:"remedy,omitempty"`
}

type status string

const (
	ok   status = "ok"
	info status = "info"
	warn status = "warn" // an operator should look at it
	bad  status = "bad"  // something does not work or is not safe
)

func troubles(fs []finding) bool {
	return slices.ContainsFunc(fs, func(f finding) bool { return f.Status == warn || f.Status == bad })
}

// limits are the values up to which a partition counts as healthy.
type limits struct {
	lag         int64 // messages of a partition; negative: no limit
	age         time.Duration
	deadLetters int64
	outboxAge   time.Duration
	claims      int // of a partition per hour
	paused      bool
	outside     time.Duration // for how long a write from outside a fenced transaction is reported
}

// scene is the input of the findings about partitions.
type scene struct {
	op       operate.Operator
	ps       []operate.Partition
	views    []partitionView
	extents  []extent
	lives    operate.Lives
	brokered bool // a broker is configured
	filter   operate.Filter
}

func (a *app) survey(ctx context.Context, which chosen) (scene, error) {
	ps, vs, err := a.views(ctx, which, nil)
	if err != nil && !errors.Is(err, errNoPartition) {
		return scene{}, err
	}
	s := scene{filter: which.filter(), brokered: a.flags.kafka != "" || a.flags.kafkaConfig != "" || a.flags.nats != ""}
	for i, p := range ps {
		if p.Fence.Partition != drillPartition && vs[i].State != elsewhere {
			s.ps, s.views = append(s.ps, p), append(s.views, vs[i])
		}
	}
	if s.op, err = a.operator(ctx); err != nil {
		return s, err
	}
	if s.lives, err = s.op.Processes(ctx, which.group); err != nil {
		return s, err
	}
	if s.brokered {
		s.extents = a.extents(ctx, operate.Fences(s.ps))
	}
	return s, nil
}

func (a *app) findings(ctx context.Context, s scene, l limits) (fs []finding) {
	for i, v := range s.views {
		fs = append(fs, standing(s.ps[i], v, l)...)
		if s.brokered && hasLog(s.ps[i].Fence) {
			fs = append(fs, logged(s.ps[i], s.extents[i], l)...)
		}
	}
	fs = append(fs, living(s)...)
	fs = append(fs, a.unfenced(ctx, s)...)
	fs = append(fs, foreign(ctx, s)...)
	fs = append(fs, often(ctx, s, l)...)
	fs = append(fs, a.outsiders(ctx, l)...)
	return append(fs, boxed(ctx, s, l)...)
}

// living checks whether each group has a live process, each claim a live owner, and what the live
// processes say of themselves.
func living(s scene) (fs []finding) {
	const remedy = "see whether the consumers of the group run: epochfence owners"
	seen := map[string]bool{}
	for i, v := range s.views {
		alive := s.lives.Alive(v.Group) > 0
		switch {
		case isLock(s.ps[i].Fence):
			continue
		case !alive && !seen[v.Group]:
			detail := fmt.Sprintf("no process of group %s is alive", v.Group)
			if last, known := s.lives.Last(v.Group); known {
				detail += fmt.Sprintf("; %s on %s was seen last, %s ago", last.Name, last.Host, age(last.Now.Sub(last.Seen)))
			}
			fs = append(fs, finding{"processes", bad, "", detail, remedy})
		case alive && v.State == orphaned:
			fs = append(fs, finding{"owner", bad, v.Name, fmt.Sprintf("%s has claimed it: %s, and no process has claimed the partition since", s.ps[i].Owner, v.sign), remedy})
		}
		seen[v.Group] = true
	}
	for _, p := range s.lives {
		if !p.Alive() {
			continue
		}
		for problem := range strings.Lines(p.Problems) {
			fs = append(fs, finding{"process", bad, "", fmt.Sprintf("%s on %s says: %s", p.Name, p.Host, strings.TrimSpace(problem)),
				"read its log; if a call hangs, restart it: nothing else ends the call"})
		}
	}
	return fs
}

// waitingFor is how long an owner may take to follow an operator action.
const waitingFor = time.Minute

// openFor is how long a producer's transaction may be open if --max-age says nothing: Kafka's default of
// transaction.timeout.ms.
const openFor = time.Minute

// standing checks the fence and the audit log.
func standing(p operate.Partition, v partitionView, l limits) (fs []finding) {
	add := func(check string, s status, detail, remedy string) {
		fs = append(fs, finding{check, s, v.Name, detail, remedy})
	}
	switch v.State {
	case halted:
		add("halted", bad, fmt.Sprintf("halted at %s: %s", stamp(*v.Since), v.Reason), "epochfence explain "+shellQuote(v.Name))
	case unread:
		add("fence", bad, v.Reason, "update this command, and the processes of the group")
	case paused:
		if !l.paused {
			add("paused", warn, fmt.Sprintf("paused since %s by %s: %s", stamp(p.Pause.Since), v.By, v.Reason), "epochfence resume "+shellQuote(v.Name)+forReal)
		}
	case waiting:
		if since := p.Now.Sub(p.ClaimedAt); since > waitingFor {
			add("owner", warn, fmt.Sprintf("no process has claimed it since %s acted %s ago", v.Owner, age(since)), "see whether a consumer of the group runs")
		}
	case unclaimed:
		add("owner", warn, "nobody ever had it", "see whether a consumer of the group runs")
	default:
	}
	if v.DeadLetters > l.deadLetters {
		add("dead letters", warn, count(v.DeadLetters, "dead letter"), "epochfence deadletters list "+shellQuote(v.Name))
	}
	return fs
}

func logged(p operate.Partition, e extent, l limits) (fs []finding) {
	name := p.Fence.Partition.String()
	add := func(check string, s status, detail, remedy string) {
		fs = append(fs, finding{check, s, name, detail, remedy})
	}
	switch {
	case errors.Is(e.err, errNoBroker):
		add("log", info, e.err.Error(), "")
		return fs
	case e.err != nil:
		add("log", warn, e.err.Error(), "")
		return fs
	case e.log != p.Log:
		add("log", bad, fmt.Sprintf("the fence is of log %s, and now there is log %s", p.Log, e.log), "epochfence rebase "+shellQuote(name)+" --to …"+forReal)
		return fs
	case e.source != p.Source && whereIs(p.Fence) == inNATS:
		add("lease issuer", bad, fmt.Sprintf("the fence is leased from %s, and --nats-bucket and --nats-domain say %s", p.Source, e.source),
			"name the group's bucket with --nats-bucket; if the group has moved to this one: epochfence rebase "+shellQuote(name)+forReal)
	case e.source != p.Source:
		add("lease issuer", bad, fmt.Sprintf("the fence is leased from %s, and here leases come from %s", p.Source, e.source), "epochfence rebase "+shellQuote(name)+forReal)
	}
	switch {
	case p.Next < e.begin && p.Applied && whereIs(p.Fence) == inNATS: // a stream has the messages of all partitions, and those that are gone may be another's
		add("position", warn, fmt.Sprintf("the next offset is %d and the stream begins at %d: messages may have gone that were not applied", p.Next, e.begin), "epochfence explain "+shellQuote(name))
	case p.Next < e.begin && p.Applied:
		add("position", bad, fmt.Sprintf("the next offset is %d and the log begins at %d: messages went that were not applied", p.Next, e.begin), "epochfence rewind "+shellQuote(name)+" --to start"+forReal)
	case p.Next > e.end:
		add("position", bad, fmt.Sprintf("the next offset is %d and the log ends at %d: it was truncated", p.Next, e.end), "epochfence rewind "+shellQuote(name)+" --to …"+forReal)
	}
	if o := e.open; o != nil {
		since, limit := latest(p.ClaimedAt, p.AdvancedAt), l.age
		if o.Since != nil {
			since = *o.Since
		}
		if limit <= 0 {
			limit = openFor
		}
		if p.Now.Sub(since) > limit {
			add("open transaction", warn, o.String(), "see what the producer waits for; kafka-transactions.sh abort ends a transaction that hangs")
		}
	}
	if l.lag >= 0 && e.lag > l.lag {
		add("lag", warn, fmt.Sprintf("%s to apply, more than %d", count(e.lag, "message"), l.lag), "epochfence describe "+shellQuote(name))
	}
	if still := p.Now.Sub(latest(p.ClaimedAt, p.AdvancedAt)); l.age > 0 && e.lag > 0 && p.Epoch > 0 && still > l.age {
		add("age", warn, fmt.Sprintf("there is %s to apply, and it has not moved for %s", count(e.lag, "message"), age(still)), "epochfence explain "+shellQuote(name))
	}
	return fs
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (a *app) unfenced(ctx context.Context, s scene) (fs []finding) {
	if !s.brokered {
		return nil
	}
	type key struct{ group, topic string }
	of := map[key][]epoch.Fence{}
	var keys []key
	for i, p := range s.ps {
		k := key{p.Fence.Partition.Group, p.Fence.Partition.Topic}
		if s.extents[i].err != nil || !hasLog(p.Fence) {
			continue
		}
		if of[k] == nil {
			keys = append(keys, k)
		}
		of[k] = append(of[k], p.Fence)
	}
	for _, k := range keys {
		b, err := a.brokerOf(of[k][0])
		var missing []epoch.Partition
		if err == nil {
			missing, err = b.unfenced(ctx, k.group, k.topic, of[k])
		}
		if err != nil {
			fs = append(fs, finding{"fences", warn, "", err.Error(), ""})
		}
		for _, p := range missing {
			fs = append(fs, finding{"fences", warn, p.String(), "the topic has this partition, and the sink has no fence of it", "see whether a consumer of the group runs"})
		}
	}
	return fs
}

// foreign looks for positions that the group has published under a claim that this sink does not have. The
// audit log is read after the broker, so it has all claims that this sink has made until then.
func foreign(ctx context.Context, s scene) (fs []finding) {
	if !s.brokered {
		return nil
	}
	var doubtful []int
	unread := map[string]bool{}
	for i, p := range s.ps {
		if err := s.extents[i].unread; err != nil && !unread[p.Partition.Group] {
			unread[p.Partition.Group] = true
			fs = append(fs, finding{"sink", warn, "", fmt.Sprintf("what group %s has committed could not be read, so whether it writes to another database is not known: %v", p.Partition.Group, err),
				"let this command DESCRIBE the group and its topics"})
		}
		if at := s.extents[i].published; at != nil && at.epoch > 0 && at.claim != p.Claim {
			doubtful = append(doubtful, i)
		}
	}
	if len(doubtful) == 0 {
		return fs
	}
	q := operate.HistoryQuery{Limit: 5000, Kinds: []operate.DecisionKind{
		operate.DecidedClaim, operate.DecidedRewind, operate.DecidedSkip, operate.DecidedPause, operate.DecidedResume, operate.DecidedEvict, operate.DecidedRebase,
	}}
	ds, err := s.op.History(ctx, q)
	if err != nil {
		return append(fs, finding{"sink", warn, "", err.Error(), ""})
	}
	ours, oldest := map[epoch.ClaimID]bool{}, map[epoch.Partition]epoch.Epoch{}
	for _, d := range ds { // newest first
		ours[d.Claim], oldest[d.Partition] = true, d.Epoch
	}
	for _, i := range doubtful {
		p, at := s.ps[i], s.extents[i].published
		if since, known := oldest[p.Fence.Partition]; ours[at.claim] || at.epoch < p.Epoch && (!known || since > at.epoch) {
			continue
		}
		fs = append(fs, finding{"sink", bad, p.Fence.Partition.String(),
			fmt.Sprintf("the group has committed offset %d under epoch %d, claim %s, which this sink does not have: a process of the group writes to another database, or this one was restored", at.next, at.epoch, at.claim),
			"see which database each process of the group has: epochfence owners with --database of each"})
	}
	return fs
}

// often looks for partitions that change owners too often.
func often(ctx context.Context, s scene, l limits) (fs []finding) {
	if l.claims <= 0 || len(s.ps) == 0 {
		return nil
	}
	ds, err := s.op.History(ctx, operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedClaim}, Limit: 5000})
	if err != nil {
		return []finding{{"claims", warn, "", err.Error(), ""}}
	}
	since := s.ps[0].Now.Add(-time.Hour)
	n := map[epoch.Partition]int{}
	for _, d := range ds {
		if d.At.After(since) {
			n[d.Partition]++
		}
	}
	for _, p := range s.ps {
		if many := n[p.Fence.Partition]; many > l.claims && !isLock(p.Fence) {
			fs = append(fs, finding{"claims", warn, p.Fence.Partition.String(), fmt.Sprintf("%d claims in the last hour", many),
				"epochfence history " + shellQuote(p.Fence.Partition.String())})
		}
	}
	return fs
}

// boxed looks for outbox entries that nobody sends.
func boxed(ctx context.Context, s scene, l limits) []finding {
	now := time.Now()
	if len(s.ps) > 0 {
		now = s.ps[0].Now // the entries' times are by the same database's clock
	}
	oldest, err := s.op.OutboxEntries(ctx, operate.OutboxQuery{Filter: s.filter, Limit: 1})
	switch {
	case err != nil:
		return []finding{{"outbox", warn, "", err.Error(), ""}}
	case len(oldest) > 0 && !oldest[0].AddedAt.IsZero() && l.outboxAge > 0 && now.Sub(oldest[0].AddedAt) > l.outboxAge:
		return []finding{{"outbox", warn, oldest[0].Partition.String(), fmt.Sprintf("entry %d waits to be sent since %s", oldest[0].ID, stamp(oldest[0].AddedAt)), "epochfence outbox list"}}
	default:
		return nil
	}
}
