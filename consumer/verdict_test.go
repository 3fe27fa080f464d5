package consumer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// The tables below are what R5, R6, R11, L1 and L2 say about a transaction that has
// come back. A transaction is written as one line for each partition, and what
// it means in the same order.

var (
	errRefused = errors.New("violates check constraint")
	errHandler = errors.New("no such item")
)

func partitionNo(n int32) epoch.Partition { return epoch.Partition{Group: "g", Topic: "t", Number: n} }

// of is a partition with so many messages in a transaction.
func of(n int32, messages int) trial {
	return trial{partition: partitionNo(n), messages: messages, first: 100}
}

func (t trial) after(attempts int) trial { t.attempts = attempts; return t }
func (t trial) onFailure() trial         { t.failed = errHandler; return t }
func (t trial) gone() trial              { t.lost = true; return t }
func (t trial) doubted(n int) trial      { t.doubts = n; return t }

// failing is a transaction that a handler's error has ended.
func failing(err error, batch, at int) result {
	return result{err: fmt.Errorf("sink: %w", err), called: true, handler: err, batch: batch, at: at}
}

// refusing is one that the database has refused to commit.
func refusing(err error) result { return result{err: err, called: true, at: -1} }

func (r result) asleep() result { r.froze = time.Minute; return r }
func (r result) late() result   { r.timedOut = true; return r }

func TestJudgeSaysWhatATransactionsAnswerMeansForEachPartition(t *testing.T) {
	lostAnswer := fmt.Errorf("sink: %w: connection reset", epoch.ErrInDoubt)
	deadlock := fmt.Errorf("sink: %w: deadlock", epoch.ErrTransient)
	noTable := fmt.Errorf("sink: %w: no such table", epoch.ErrUnhealthy)
	stale := &epoch.StaleError{Partition: partitionNo(1)}
	moved := &epoch.MovedError{Partition: partitionNo(1)}
	missing := &epoch.MissingError{Partition: partitionNo(1)}
	low := &epoch.LowEpochError{Partition: partitionNo(1), Epoch: 5, Seen: 7}
	tooLow := &epoch.LowEpochError{Partition: partitionNo(1), Epoch: 5, Seen: epoch.MaxAbove + 1}
	large := fmt.Errorf("sink: %w", epoch.ErrTooLarge)
	ended := fmt.Errorf("sink: %w", epoch.ErrTxEndedByHandler)
	own := fmt.Errorf("sink: %w", epoch.ErrOwnTransaction)

	for _, c := range []struct {
		claim string
		tried []trial
		back  result
		want  string
	}{
		{"what is committed is advanced past", []trial{of(0, 3), of(1, 0)}, result{called: true}, "advance, advance"},
		{"a commit that came late is a commit", []trial{of(0, 3)}, result{called: true}.asleep(), "advance"},

		{"R6: stale ends the claim of its partition only", []trial{of(0, 3), of(1, 2)}, refusing(stale), "retry, give up doubted"},
		{"R5: moved is claimed again", []trial{of(0, 3), of(1, 2)}, refusing(moved), "retry, claim again doubted"},
		{"R9: a missing fence halts its partition", []trial{of(0, 3), of(1, 2)}, refusing(missing), "retry, halt"},
		{"an epoch that is too low is claimed above", []trial{of(0, 3), of(1, 2)}, refusing(low), "retry, claim above 7"},
		{"if that can be reached", []trial{of(0, 3), of(1, 2)}, refusing(tooLow), "retry, halt"},
		{"R6: a refusal comes before doubt", []trial{of(1, 2)}, refusing(errors.Join(stale, epoch.ErrInDoubt)), "give up doubted"},
		{"a refusal of nobody who was tried is the database's", []trial{of(0, 1)}, refusing(stale), "retry attempt"},

		{"R5: in doubt, all are claimed again", []trial{of(0, 3), of(1, 2)}, refusing(lostAnswer), "claim again doubted, claim again doubted"},
		{"R5: doubt comes before a lost lease", []trial{of(0, 3).gone(), of(1, 2)}, refusing(lostAnswer), "claim again doubted, claim again doubted"},
		{"also once more: the next transactions are smaller", []trial{of(0, 3).doubted(1), of(1, 2)}, refusing(lostAnswer), "claim again doubted, claim again doubted"},
		{"a position that moves once more is narrowed down", []trial{of(1, 3).doubted(1)}, refusing(moved), "claim again among -1"},
		{"doubt comes before blame, but the message is remembered", []trial{of(0, 3), of(1, 2)},
			result{err: errors.Join(lostAnswer, errHandler), called: true, handler: errHandler, batch: 1, at: 1}, "claim again, claim again among 1"},
		{"also the one at hand, behind which no handler was called", []trial{of(0, 3), of(1, 5), of(2, 1)},
			result{err: lostAnswer, called: true, at: -1, cut: true, reached: place{1, 3}}, "claim again, claim again among 3, claim again"},
		{"alone, it has died, which the next claim judges", []trial{of(0, 1)}, refusing(lostAnswer), "claim again died"},
		{"whatever its handler returned", []trial{of(0, 1).after(9)},
			result{err: errors.Join(lostAnswer, errHandler), called: true, handler: errHandler, at: 0}, "claim again died"},
		{"unless it says that it is permanent", []trial{of(0, 1)},
			result{err: errors.Join(lostAnswer, Permanent(errHandler)), called: true, handler: Permanent(errHandler), at: 0}, "claim again last attempt"},
		{"OnFailure dies too", []trial{of(0, 1).onFailure().after(9)},
			result{err: errors.Join(lostAnswer, errHandler), called: true, handler: errHandler, at: 0}, "claim again died"},
		{"a position alone does not die", []trial{of(0, 0)}, refusing(lostAnswer), "claim again"},
		{"one that is moved alone may move itself", []trial{of(1, 1)}, refusing(moved), "claim again died"},
		{"one whose claim is replaced alone may replace it itself", []trial{of(1, 1)}, refusing(stale), "give up died"},
		{"among several that is narrowed down", []trial{of(1, 3).doubted(1)}, refusing(stale), "give up among -1"},
		{"R11: a freeze made it late, so nobody is remembered", []trial{of(0, 1).after(9)},
			result{err: errors.Join(lostAnswer, errHandler), called: true, handler: errHandler, at: 0}.asleep(), "claim again"},

		{"the handler ended the transaction: nobody tries again", []trial{of(0, 3), of(1, 2)}, refusing(ended), "halt for good, halt for good"},
		{"those whose handlers were not called yet continue", []trial{of(0, 3), of(1, 2), of(2, 2)}, failing(ended, 1, 0), "halt for good, halt for good, retry"},
		{"even if it is in doubt too", []trial{of(0, 1)}, refusing(errors.Join(ended, epoch.ErrInDoubt)), "halt for good"},

		{"whose lease is lost takes nobody along", []trial{of(0, 3).gone(), of(1, 2)}, failing(errHandler, 0, 1), "retry, retry"},
		{"a transaction that did not begin is no message's fault", []trial{of(0, 1).after(9), of(1, 2)},
			result{err: errRefused, at: -1}, "claim again, claim again"},

		{"a handler's error is its own partition's", []trial{of(0, 3), of(1, 2)}, failing(errHandler, 1, 1), "retry, retry among 1"},
		{"a batch's handler does not say on which message", []trial{of(0, 3)}, failing(errHandler, 0, -1), "retry among -1"},
		{"a message that shared the transaction is tried alone first", []trial{of(0, 1), of(1, 1)}, failing(errHandler, 0, 0), "retry among 0, retry"},
		{"also if it says that it is permanent", []trial{of(0, 1), of(1, 1)}, failing(Permanent(errHandler), 0, 0), "retry among 0, retry"},
		{"a refused commit is narrowed down in all", []trial{of(0, 3), of(1, 2)}, refusing(errRefused), "retry among -1, retry among -1"},

		{"L2: a message alone has failed an attempt", []trial{of(0, 1)}, failing(errHandler, 0, 0), "retry attempt"},
		{"by the database's refusal, too", []trial{of(0, 1)}, refusing(errRefused), "retry attempt"},
		{"after the last attempt OnFailure decides", []trial{of(0, 1).after(9)}, failing(errHandler, 0, 0), "retry last attempt"},
		{"or at once, if it is permanent", []trial{of(0, 1)}, failing(Permanent(errHandler), 0, 0), "retry last attempt"},
		{"what OnFailure cannot settle halts", []trial{of(0, 1).onFailure()}, failing(errRefused, 0, 0), "halt"},
		{"a transaction without messages blames none", []trial{of(0, 0)}, refusing(errRefused), "claim again"},

		{"a call that needs a transaction of its own gets one", []trial{of(0, 3), of(1, 2)}, failing(own, 1, 1), "retry, retry in company 1"},
		{"among messages of its own partition too", []trial{of(0, 3)}, failing(own, 0, 2), "retry in company 2"},
		{"also the first of them", []trial{of(0, 3)}, failing(own, 0, 0), "retry in company 0"},
		{"a message that has one alone has failed", []trial{of(0, 1)}, failing(own, 0, 0), "retry attempt"},
		{"and so does a batch", []trial{of(0, 3), of(1, 2)}, failing(own, 0, -1), "retry in company -1, retry"},
		{"one that has it already has failed", []trial{of(0, 3)}, failing(own, 0, -1), "retry among -1"},
		{"L1: what passes is tried again with less", []trial{of(0, 3), of(1, 2)}, refusing(deadlock), "retry transient, retry transient"},
		{"and costs a message alone no attempt", []trial{of(0, 1).after(9)}, failing(deadlock, 0, 0), "retry transient"},
		{"unless it says that it is permanent", []trial{of(0, 1)}, failing(Permanent(deadlock), 0, 0), "retry last attempt"},
		{"L1: too slow together is halved", []trial{of(0, 8)}, failing(errHandler, 0, 7).late(), "retry too many"},
		{"too slow alone is an attempt", []trial{of(0, 1)}, failing(errHandler, 0, 0).late(), "retry attempt"},
		{"L1: what does not fit together is halved", []trial{of(0, 8), of(1, 1)}, refusing(large), "retry too many, retry too many"},
		{"also where a statement said so", []trial{of(0, 8)}, failing(large, 0, 3), "retry too many"},
		{"what does not fit alone is an attempt", []trial{of(0, 1)}, refusing(large), "retry attempt"},
		{"R11: what a freeze made late is nobody's fault", []trial{of(0, 1).after(9)}, failing(errHandler, 0, 0).late().asleep(), "retry transient"},

		{"L2: a missing table halts, and blames nobody", []trial{of(0, 1).after(9)}, failing(noTable, 0, 0), "halt"},
		{"those before it are applied first", []trial{of(0, 8)}, failing(noTable, 0, 5), "retry among 5"},
		{"L2: in doubt and unhealthy halts, and claims again", []trial{of(0, 1)}, refusing(errors.Join(epoch.ErrInDoubt, noTable)), "halt in doubt"},
		{"narrowed down first", []trial{of(0, 8)}, refusing(errors.Join(epoch.ErrInDoubt, noTable)), "claim again among -1"},
		{"OnFailure may be what misses the table", []trial{of(0, 1).onFailure()}, failing(noTable, 0, 0), "halt"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			p := policy{maxAttempts: 10, onFailure: true}
			var got []string
			for _, v := range p.judge(c.tried, c.back) {
				got = append(got, v.String())
				if v.action != advance && v.err == nil {
					t.Errorf("%v does not say why", v)
				}
			}
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestWithoutOnFailureTheLastAttemptHalts(t *testing.T) {
	testLastAttempt(t, halt, failing(errHandler, 0, 0))
	inDoubt := failing(Permanent(errHandler), 0, 0)
	inDoubt.err = errors.Join(epoch.ErrInDoubt, inDoubt.handler)
	testLastAttempt(t, haltInDoubt, inDoubt)
}

// TestWhatDiesAloneAgainAndAgainHasFailedAnAttempt: R5 and L2. One lost connection is
// nobody's fault.
func TestWhatDiesAloneAgainAndAgainHasFailedAnAttempt(t *testing.T) {
	lostAnswer := fmt.Errorf("sink: %w: connection reset: %w", epoch.ErrInDoubt, errHandler)
	for _, c := range []struct {
		claim  string
		tried  trial
		deaths int
		want   string
	}{
		{"once is nobody's fault", of(0, 1).after(2), 1, "claim again"},
		{"nor is twice", of(0, 1).after(2), 2, "claim again"},
		{"three times is an attempt", of(0, 1), 3, "retry attempt"},
		{"and so is each one after that", of(0, 1).after(1), 7, "retry attempt"},
		{"up to the last", of(0, 1).after(2), 9, "retry last attempt"},
		{"OnFailure is called as often", of(0, 1).onFailure().after(1), 3, "retry attempt"},
		{"and then halts", of(0, 1).onFailure().after(2), 3, "halt"},
	} {
		v := policy{maxAttempts: 3, onFailure: true}.died(c.tried, c.deaths, lostAnswer)
		if got := v.String(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.claim, got, c.want)
		}
		if v.action != claimAgain && (errors.Is(v.err, epoch.ErrInDoubt) || !errors.Is(v.err, errHandler)) {
			t.Errorf("%s: %v is in doubt, or does not say of what it died", c.claim, v.err)
		}
	}
	v := policy{maxAttempts: 1}.died(of(0, 1), 3, lostAnswer)
	if v.action != halt || reasonOf(v.err) != ReasonMessageFailed {
		t.Errorf("without OnFailure: %v because of %v, %v", v, reasonOf(v.err), v.err)
	}
}

func TestTheErrorOfASlowHandlerSaysHowSlowItWas(t *testing.T) {
	slow := refusing(errTimeout).late()
	slow.handling, slow.limit = 8*time.Second, 2700*time.Millisecond
	v := policy{maxAttempts: 3}.judge([]trial{of(0, 1)}, slow)[0]
	if v.finding != attempt || !strings.Contains(v.err.Error(), "the handler took 8s, BatchTimeout is 2.7s") || !errors.Is(v.err, errTimeout) {
		t.Errorf("%v: %v", v, v.err)
	}
	for name, r := range map[string]func(*result){
		"it ended in time":             func(r *result) { r.timedOut = false },
		"there is no limit":            func(r *result) { r.limit = 0 },
		"others than the handler took": func(r *result) { r.handling = r.limit / 2 },
	} {
		other := slow
		r(&other)
		if v := (policy{maxAttempts: 3}).judge([]trial{of(0, 1)}, other)[0]; strings.Contains(v.err.Error(), "the handler took") {
			t.Errorf("%s: %v", name, v.err)
		}
	}
}

func TestAnUnhealthyDatabaseIsReportedWithTheMessageThatMetItIfThereIsOne(t *testing.T) {
	noTable := fmt.Errorf("sink: %w: no such table", epoch.ErrUnhealthy)
	for n, want := range map[int]bool{0: false, 1: true} {
		v := policy{maxAttempts: 3}.judge([]trial{of(0, n)}, refusing(noTable))[0]
		if said := strings.Contains(v.err.Error(), "the message at offset 100"); v.action != halt || said != want {
			t.Errorf("with %d messages: %v: %v", n, v, v.err)
		}
	}
}

func testLastAttempt(t *testing.T, want action, r result) {
	vs := policy{maxAttempts: 3}.judge([]trial{of(0, 1).after(2)}, r)
	var failure *HandlerError
	if got := vs[0]; got.action != want || !errors.As(got.err, &failure) || failure.Attempts != 3 || failure.Offset != 100 || !errors.Is(failure, errHandler) {
		t.Errorf("%v: %v", got, got.err)
	}
}

func TestWhatOnFailureCannotSettleIsReportedWithTheFirstFailure(t *testing.T) {
	vs := policy{maxAttempts: 1, onFailure: true}.judge([]trial{of(0, 1).onFailure()}, failing(errRefused, 0, 0))
	if !errors.Is(vs[0].err, errHandler) || !errors.Is(vs[0].err, errRefused) {
		t.Errorf("halts with %v; want both", vs[0].err)
	}
}

func (v verdict) String() string {
	s := [...]string{"advance", "retry", "claim again", "claim above", "give up", "leave", "halt", "halt in doubt", "halt for good"}[v.action]
	if l := [...]string{"", "among", "in company", "too many", "transient", "doubted", "died", "attempt", "last attempt"}[v.finding]; l != "" && v.action != halt {
		s += " " + l
	}
	if v.action == claimAbove {
		s += fmt.Sprintf(" %d", v.above)
	}
	if v.finding == oneOfThem || v.finding == needsOwn {
		s += fmt.Sprintf(" %d", v.at)
	}
	return s
}

func TestAHaltForGoodNamesTheMessageAtFaultToAllThatItHalts(t *testing.T) {
	r := failing(epoch.ErrTxEndedByHandler, 1, 0)
	r.offset = 107
	guilty := of(1, 2)
	guilty.attempts = 2
	vs := policy{maxAttempts: 10}.judge([]trial{of(0, 3), guilty}, r)
	for _, v := range vs {
		var named *HandlerError
		if !errors.As(v.err, &named) || named.Partition != partitionNo(1) || named.Offset != 107 || named.Attempts != 3 || v.action != haltForGood {
			t.Errorf("%v: %v", v, v.err)
		}
	}
}
