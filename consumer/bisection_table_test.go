package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// What is known of the messages from the position on, and what the next transaction takes
// of a hundred: the arithmetic that decides which message is blamed.
func TestWhatATransactionTeachesAboutItsMessages(t *testing.T) {
	bad := errors.New("bad")
	three := trial{messages: 3, first: 40}
	one := trial{messages: 1, first: 40}
	learn := func(v verdict, t trial, handler, shared bool) func(*bisection) time.Duration {
		return func(b *bisection) time.Duration { return b.learn(v, t, handler, shared) }
	}
	do := func(f func(*bisection)) func(*bisection) time.Duration {
		return func(b *bisection) time.Duration { f(b); return 0 }
	}
	retried := func(l finding, at int) verdict { return verdict{action: retry, finding: l, at: at, err: bad} }
	const wait, pause = 10 * time.Millisecond, contended
	for name, c := range map[string]struct {
		was  bisection
		then func(*bisection) time.Duration
		want bisection
		size int // of the next transaction
		in   time.Duration
	}{
		"one of three, unknown which":     {bisection{}, learn(retried(oneOfThem, -1), three, true, false), bisection{suspects: 3, try: 1}, 1, 0},
		"one of eight":                    {bisection{}, learn(retried(oneOfThem, -1), trial{messages: 8}, true, false), bisection{suspects: 8, try: 4}, 4, 0},
		"one of one":                      {bisection{}, learn(retried(oneOfThem, -1), one, true, true), bisection{suspects: 1, try: 1}, 1, 0},
		"none were in it":                 {bisection{}, learn(retried(oneOfThem, -1), trial{}, true, true), bisection{suspects: 1, try: 1}, 1, 0},
		"the first of three":              {bisection{}, learn(retried(oneOfThem, 0), three, true, false), bisection{suspects: 1, try: 1}, 1, 0},
		"the third of three":              {bisection{}, learn(retried(oneOfThem, 2), three, true, false), bisection{suspects: 3, try: 2}, 2, 0},
		"the third, and two take long":    {bisection{most: 1}, learn(retried(oneOfThem, 2), three, true, false), bisection{suspects: 3, try: 1, most: 1}, 1, 0},
		"one of eight, one by one before": {bisection{step: 1, suspects: 9}, learn(retried(oneOfThem, -1), trial{messages: 8}, true, false), bisection{suspects: 8, try: 4, again: true}, 4, 0},

		"eight take too long":     {bisection{}, learn(retried(tooMany, -1), trial{messages: 8}, true, false), bisection{suspects: 8, try: 4, most: 4}, 4, 0},
		"one takes too long":      {bisection{}, learn(retried(tooMany, -1), one, true, true), bisection{suspects: 1, try: 1, most: 1}, 1, 0},
		"seven take too long":     {bisection{}, learn(retried(tooMany, -1), trial{messages: 7}, true, false), bisection{suspects: 7, try: 3, most: 3}, 3, 0},
		"and half of them passes": {bisection{suspects: 8, try: 4, most: 4}, do(func(b *bisection) { b.passed(4) }), bisection{suspects: 4, try: 2, most: 4}, 2, 0},
		"and all of them pass":    {bisection{suspects: 4, try: 4, most: 4}, do(func(b *bisection) { b.passed(4) }), bisection{try: 1}, 1, 0},

		"the third needs a transaction of its own": {bisection{}, learn(retried(needsOwn, 2), three, true, false), bisection{suspects: 2, try: 2, step: 2}, 2, 0},
		"the first does":                          {bisection{}, learn(retried(needsOwn, 0), three, true, false), bisection{suspects: 1, try: 1, step: 1, streak: 1}, 1, 0},
		"and the next one, too":                   {bisection{streak: 1}, learn(retried(needsOwn, 0), three, true, false), bisection{suspects: 2, try: 1, step: 1, streak: 2}, 1, 0},
		"and a thousand":                          {bisection{streak: 1000}, learn(retried(needsOwn, 0), three, true, false), bisection{suspects: 1024, try: 1, step: 1, streak: 1024}, 1, 0},
		"their batch does":                        {bisection{}, learn(retried(needsOwn, -1), three, true, false), bisection{suspects: 3, try: 3, step: 3, streak: 1}, 3, 0},
		"their batch does, and two take too long": {bisection{most: 2}, learn(retried(needsOwn, -1), three, true, false), bisection{suspects: 3, try: 2, step: 3, streak: 1, most: 2}, 2, 0},
		"one by one, the first has passed":        {bisection{suspects: 3, try: 1, step: 1, streak: 4}, do(func(b *bisection) { b.passed(1) }), bisection{suspects: 2, try: 1, step: 1, streak: 4}, 1, 0},
		"one by one, the last has passed":         {bisection{suspects: 1, try: 1, step: 1, streak: 4}, do(func(b *bisection) { b.passed(1) }), bisection{try: 1, streak: 4}, 1, 0},
		"two by two, the last two have passed":    {bisection{suspects: 2, try: 2, step: 2}, do(func(b *bisection) { b.passed(2) }), bisection{try: 1}, 1, 0},
		"later several pass together":             {bisection{try: 1, streak: 4}, do(func(b *bisection) { b.passed(2) }), bisection{try: 1}, 1, 0},
		"later one passes":                        {bisection{try: 1, streak: 4}, do(func(b *bisection) { b.passed(1) }), bisection{try: 1, streak: 4}, 1, 0},

		"a deadlock in company":               {bisection{}, learn(retried(transient, 0), three, true, true), bisection{refusals: 1}, 0, 0},
		"a second one in a row":               {bisection{refusals: 1}, learn(retried(transient, 0), three, true, true), bisection{suspects: 1, try: 1, refusals: 2}, 1, 0},
		"two that were another's":             {bisection{refusals: 1}, learn(retried(transient, 0), three, false, true), bisection{refusals: 1}, 0, 0},
		"one message in company":              {bisection{refusals: 1}, learn(retried(transient, 0), one, false, true), bisection{refusals: 1}, 0, 0},
		"a message alone, for the first time": {bisection{}, learn(retried(transient, 0), one, false, false), bisection{refusals: 1}, 0, 0},
		"a message alone, again":              {bisection{suspects: 3, try: 2, refusals: 1}, learn(retried(transient, 0), one, true, false), bisection{suspects: 3, try: 1, refusals: 2}, 1, pause},
		"some that are narrowed already":      {bisection{suspects: 3, try: 2}, learn(retried(transient, 0), three, false, false), bisection{suspects: 3, try: 1}, 1, 0},

		"an attempt":            {bisection{suspects: 4, try: 4}, learn(retried(attempt, 0), one, true, false), bisection{suspects: 1, try: 1, attempts: 1, first: 40}, 1, wait},
		"the last attempt":      {bisection{attempts: 2, deaths: 1, first: 40}, learn(retried(lastAttempt, 0), one, true, false), bisection{suspects: 1, try: 1, first: 40, failed: bad}, 1, 0},
		"in doubt in company":   {bisection{}, learn(verdict{action: claimAgain, finding: doubted}, three, false, true), bisection{doubts: 1}, 0, 0},
		"in doubt among":        {bisection{doubts: 1}, learn(verdict{action: claimAgain, finding: oneOfThem, at: -1}, three, false, true), bisection{suspects: 3, try: 1, doubts: 2}, 1, 0},
		"in doubt, and nothing": {bisection{doubts: 1}, learn(verdict{action: claimAgain}, three, false, true), bisection{doubts: 1}, 0, 0},
		"in doubt alone":        {bisection{}, learn(verdict{action: claimAgain, finding: died}, one, false, false), bisection{suspects: 1, try: 1, doubts: 1, deaths: 1, first: 40}, 1, 0},
		"refused, not in doubt": {bisection{}, learn(verdict{action: halt, finding: attempt}, one, true, false), bisection{suspects: 1, try: 1, attempts: 1, first: 40}, 1, wait},

		"half of six pass":             {bisection{suspects: 6, try: 3, attempts: 1, refusals: 1, doubts: 1, deaths: 1, failed: bad}, do(func(b *bisection) { b.passed(3) }), bisection{suspects: 3, try: 1}, 1, 0},
		"five of six pass":             {bisection{suspects: 6, try: 5}, do(func(b *bisection) { b.passed(5) }), bisection{suspects: 1, try: 1}, 1, 0},
		"more pass than are suspected": {bisection{suspects: 2, try: 1}, do(func(b *bisection) { b.passed(5) }), bisection{try: 1}, 1, 0},
		"another message is first now": {bisection{suspects: 2, try: 1, first: 40, attempts: 2, deaths: 1, failed: bad}, do(func(b *bisection) { b.meets(41) }), bisection{suspects: 2, try: 1, first: 40}, 1, 0},
		"the message is first still":   {bisection{suspects: 2, try: 2, first: 40, attempts: 2, deaths: 1, failed: bad}, do(func(b *bisection) { b.meets(40) }), bisection{suspects: 2, try: 2, first: 40, attempts: 2, deaths: 1, failed: bad}, 1, 0},
		"halted":                       {bisection{suspects: 3, try: 2, step: 2, attempts: 2, deaths: 1, failed: bad}, do((*bisection).halted), bisection{suspects: 3, try: 1}, 1, 0},
		"halted at the first failure":  {bisection{}, do((*bisection).halted), bisection{suspects: 1, try: 1}, 1, 0},
		"one of them has hung":         {bisection{suspects: 2, try: 2}, do(func(b *bisection) { b.alone(5) }), bisection{suspects: 5, try: 1, most: 1}, 1, 0},
		"one has hung of fewer":        {bisection{suspects: 7, try: 2}, do(func(b *bisection) { b.alone(5) }), bisection{suspects: 7, try: 1, most: 1}, 1, 0},
		"and it continues one by one":  {bisection{suspects: 7, try: 1, most: 1}, do(func(b *bisection) { b.passed(1) }), bisection{suspects: 6, try: 1, most: 1}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBisection(wait, time.Hour)
			c.was.wait, c.was.pause = b.wait, b.pause
			b = c.was
			if in := c.then(&b); in < c.in/2 || in > c.in*3/2 {
				t.Errorf("the next transaction begins after %v; want about %v", in, c.in)
			}
			if size := b.size(100); size != c.size {
				t.Errorf("the next transaction takes %d; want %d", size, c.size)
			}
			b.wait, b.pause = nil, nil
			if b != c.want {
				t.Errorf("%+v\nwant %+v", b, c.want)
			}
		})
	}
}

func TestATransactionTakesWhatIsReadyAtMost(t *testing.T) {
	b := bisection{suspects: 8, try: 4}
	if got := b.size(3); got != 3 {
		t.Errorf("%d of 3", got)
	}
	if b.failed = errHung; b.size(0) != 0 || b.size(3) != 1 {
		t.Errorf("OnFailure takes %d of none and %d of three", b.size(0), b.size(3))
	}
	if (&bisection{}).active() || !(&bisection{suspects: 1}).active() {
		t.Error("whoever has suspects is alone, and nobody else")
	}
}

func TestWaitsGrowUntilAMessagePasses(t *testing.T) {
	b := newBisection(time.Second, time.Hour)
	failed := verdict{action: retry, finding: attempt}
	first := b.learn(failed, trial{messages: 1}, true, false)
	second := b.learn(failed, trial{messages: 1}, true, false)
	third := b.learn(failed, trial{messages: 1}, true, false)
	// Each is twice as long as the last, give or take a half.
	for i, wait := range []time.Duration{first, second, third} {
		if nominal := time.Second << i; wait < nominal/2 || wait > nominal*3/2 {
			t.Errorf("wait %d is %v, want about %v", i, wait, nominal)
		}
	}
	b.passed(1)
	if again := b.learn(failed, trial{messages: 1}, true, false); again > 2*time.Second {
		t.Errorf("%v after a message has passed", again)
	}
	b.halted()
	if again := b.learn(failed, trial{messages: 1}, true, false); again > 2*time.Second {
		t.Errorf("%v after a halt", again)
	}
	busy := verdict{action: retry, finding: transient}
	b.passed(1)
	b.learn(busy, trial{messages: 1}, true, false)
	var waits [6]time.Duration
	for i := range waits {
		waits[i] = b.learn(busy, trial{messages: 1}, true, false)
	}
	if contended < time.Millisecond || waits[0] > 2*contended || waits[5] < 4*waits[0] {
		t.Errorf("%v between refusals", waits)
	}
	b.passed(1)
	b.learn(busy, trial{messages: 1}, true, false)
	if again := b.learn(busy, trial{messages: 1}, true, false); again > 2*contended {
		t.Errorf("%v after a message has passed", again)
	}
	if quick := newBisection(time.Millisecond, time.Hour); quick.postpone(1, true, false) != 0 || quick.postpone(1, true, false) > 2*time.Millisecond {
		t.Error("the wait is longer than RetryMin")
	}
}

func TestABatchThatIsAppliedInPartKeepsTheRest(t *testing.T) {
	p := &partition{bisect: newBisection(1, 1)}
	p.fence = epoch.Fence{Origin: epoch.Origin{Partition: epoch.Partition{Topic: "orders"}}, Epoch: 1, Claim: epoch.ClaimID{1}, Next: 5}
	p.batch = Batch{Messages: []Message{{Offset: 5}, {Offset: 6}, {Offset: 7}}, Next: 9}
	p.bisect.suspects, p.report.still.Reported = 3, true
	if err := p.move(epoch.Advance{Partition: p.fence.Partition, Claim: epoch.ClaimID{1}, From: 5, To: 6}, 1); err != nil {
		t.Fatal(err)
	}
	if p.fence.Next != 6 || len(p.batch.Messages) != 2 || p.bisect.suspects != 2 || p.report.still.Reported || p.done() {
		t.Errorf("%+v, %+v", p.fence, p.bisect)
	}
	if err := p.move(epoch.Advance{Partition: p.fence.Partition, Claim: epoch.ClaimID{1}, From: 6, To: 9}, 2); err != nil || !p.done() || p.bisect.suspects != 0 {
		t.Errorf("%+v, %+v, %v", p.fence, p.bisect, err)
	}
	if err := p.move(epoch.Advance{Partition: p.fence.Partition, Claim: epoch.ClaimID{1}, From: 6, To: 9}, 2); err == nil {
		t.Error("moved from where it is not")
	}
	// A batch of no messages moves past one that was deleted.
	p.bisect.suspects, p.batch = 2, Batch{Next: 12}
	if err := p.move(epoch.Advance{Partition: p.fence.Partition, Claim: epoch.ClaimID{1}, From: 9, To: 12}, 0); err != nil || p.bisect.suspects != 1 {
		t.Errorf("%+v, %+v, %v", p.fence, p.bisect, err)
	}
	p.bisect.suspects, p.death = 4, &death{}
	if p.forget(); p.bisect.suspects != 0 || p.death != nil {
		t.Errorf("%+v, %+v", p.fence, p.bisect)
	}
}
