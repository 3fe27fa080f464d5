package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what the result of a transaction means for each partition in it: that it is in
// doubt (claim.go learns from the next claim what became of it, R5), what is stale (R6), and whether
// the environment is blamed or a message, and which: the one that the sink's error names, or that failed
// alone (L2). So it decides what is tried again, goes to OnFailure, or halts. It does not act, log or
// wait: apply.go does what it says, and sizing.go narrows a batch down (L1).

// trial is what was tried of one partition, and what is known of its first message.
type trial struct {
	partition epoch.Partition
	messages  int // how many were tried; zero only moves the position
	first     epoch.Offset
	attempts  int   // failed attempts of the first message alone, or of OnFailure for it
	failed    error // why OnFailure was called for the first message, if it was
	doubts    int   // transactions in a row, before this one, whose outcome was in doubt
	narrowed  bool  // it goes alone, because one of its messages is suspected
	lost      bool
}

// result is how a transaction ended. All decisions about it are made from these values alone, so
// that each can be a line of a test.
type result struct {
	err      error         // the sink's; nil if all of it is committed
	called   bool          // the sink called the handlers
	handler  error         // a handler's error, for which the sink rolled back
	batch    int           // index of the trial whose handler that was,
	whole    bool          // unless it was the handler of all of them
	beside   bool          // calls ran beside each other
	at       int           // index of the message, or -1 if it is not known
	offset   epoch.Offset  // of that message, or of the first if at is -1
	cut      bool          // calls were left that did not begin, and no handler failed
	reached  place         // if cut: the last call that began
	limit    time.Duration // timeout of the transaction
	timedOut bool
	froze    time.Duration // how long this process did not run meanwhile
	took     time.Duration
	handling time.Duration // of took, in handlers
}

// place is a message: the index of its part and its index in it, or -1 for all messages of the
// part.
type place struct{ batch, at int }

// verdict is what a result means for one partition.
type verdict struct {
	action  action
	finding finding
	above   epoch.Epoch // with claimAbove
	at      int         // with oneOfThem and needsOwn: on which message, or -1
	err     error       // why, unless the action is advance
}

type action int

const (
	advance     action = iota // committed: continue after it
	retry                     // rolled back: try again, as the finding says
	claimAgain                // what the sink holds is not known (R5)
	claimAbove                // likewise, above the epoch that another system has seen
	replaced                  // the fence belongs to another claim (R6)
	leave                     // it was revoked or lost, and nothing is under way
	halt                      // it cannot continue; nothing is in doubt
	haltInDoubt               // it cannot continue, and what the sink holds is not known
	haltForGood               // the handler ended the transaction by itself, and would do so again
	abandon                   // a call for it hangs: other processes should have it
)

// finding is what a result says about the messages that were tried.
type finding int

const (
	nothing     finding = iota
	oneOfThem           // one of them is at fault: find out which
	needsOwn            // one of them needs a transaction of its own, and none is at fault
	tooMany             // so many of them take too long, or do not fit
	transient           // a failure that passes, and is no message's fault
	doubted             // they are in doubt together, which says nothing yet
	died                // the only one was in doubt: see [policy.died]
	attempt             // the only one failed: an attempt that counts
	lastAttempt         // and that was the last one: OnFailure decides
	deferred            // the only one failed, and is to be stored for later
)

// policy is what the options say about messages that fail.
type policy struct {
	maxAttempts int
	onFailure   bool
	defers      bool // the sink can store a message for later
}

// judge returns what a result means for each partition that was tried. The order of the cases is
// part of the protocol: a refusal by a fence comes before doubt, and doubt before blame.
func (p policy) judge(tried []trial, r result) []verdict {
	refused, whose := refusal(r.err)
	i := slices.IndexFunc(tried, func(t trial) bool { return t.partition == whose })
	lost := slices.ContainsFunc(tried, func(t trial) bool { return t.lost })
	switch err := r.err; {
	case err == nil:
		return each(tried, verdict{action: advance})

	case errors.Is(err, epoch.ErrTxEndedByHandler):
		// What was written until then may be committed without the fence, and a retry would write
		// it again. Handlers after that one were not called.
		vs := each(tried, verdict{action: haltForGood, err: err})
		if r.handler != nil && !r.whole {
			guilty := tried[r.batch]
			vs = each(tried, verdict{action: haltForGood,
				err: &HandlerError{Partition: guilty.partition, Offset: r.offset, Attempts: guilty.attempts + 1, Err: err}})
			for i := r.batch + 1; i < len(vs) && !r.beside; i++ {
				vs[i].action = retry
			}
		}
		return vs

	// The fence of one partition refused, so the whole transaction is rolled back. That is certain,
	// and says nothing about the others: they are tried again without the one whose claim or
	// position is another.
	case i >= 0:
		return but(each(tried, verdict{action: retry, err: err}), i, p.refused(tried[i], refused, len(tried) > 1))

	case errors.Is(err, epoch.ErrInDoubt):
		return p.doubt(tried, r)

	case lost: // its tenure ends by itself; the others continue
		return each(tried, verdict{action: retry, err: err})

	// A new claim shows whether the sink can be reached again.
	case !r.called: // the sink could not begin, which is no message's fault
		return each(tried, verdict{action: claimAgain, err: err})

	// A handler returned an error, panicked, or had its context end. The calls after it were not
	// made, so only its partition is judged. If calls beside it ran out of time, the slow one may be another.
	case r.handler != nil && !r.whole && (!r.beside || !r.timedOut):
		failed := p.failure(tried[r.batch], r, len(tried) > 1)
		return but(each(tried, verdict{action: retry, err: err}), r.batch, failed)

	// A deferred constraint, for example. Any message of any partition may be the cause, so each
	// partition is judged as if it had failed: alone, its next transaction shows whether it does.
	default: // the database refused the commit, and did not say for whom, or a handler of all of them failed
		vs, at := make([]verdict, len(tried)), r.at
		for i, t := range tried {
			if r.at = at; i != r.batch {
				r.at = -1
			}
			vs[i] = p.failure(t, r, len(tried) > 1)
		}
		return vs
	}
}

// each returns the same verdict for every partition that was tried.
func each(tried []trial, v verdict) []verdict { return slices.Repeat([]verdict{v}, len(tried)) }

// but replaces the verdict of one partition.
func but(vs []verdict, i int, v verdict) []verdict {
	vs[i] = v
	return vs
}

// refusal returns the partition of a fence's refusal and its verdict, or the zero partition.
func refusal(err error) (verdict, epoch.Partition) {
	var (
		stale   *epoch.StaleError
		moved   *epoch.MovedError
		missing *epoch.MissingError
		low     *epoch.LowEpochError
	)
	switch {
	// Another system has seen a higher epoch, so the sink has lost claims. The next claim goes
	// above it.
	case errors.As(err, &low):
		if unreachable := epoch.CheckAbove(low.Partition, low.Epoch, low.Seen); unreachable != nil {
			return verdict{action: halt, err: fmt.Errorf("consumer: %w", unreachable)}, low.Partition
		}
		return verdict{action: claimAbove, above: low.Seen, err: err}, low.Partition
	case errors.As(err, &stale):
		return verdict{action: replaced, err: err}, stale.Partition
	case errors.As(err, &moved):
		return verdict{action: claimAgain, err: err}, moved.Partition
	// A fence is never deleted (R9): somebody has done so by hand, or the sink is another database.
	// Only an operator may let the partition begin again.
	case errors.As(err, &missing):
		return verdict{action: halt, err: err}, missing.Partition
	default:
		return verdict{}, epoch.Partition{}
	}
}

// refused adds to a fence's refusal what it says about the messages. If the claim or the position
// is another one again and again, the messages may have changed the fence themselves.
func (p policy) refused(t trial, v verdict, shared bool) verdict {
	if v.action == claimAgain || v.action == replaced {
		v.finding, v.at = p.suspicion(t, shared), -1
	}
	if v.finding == doubted && t.doubts > 0 {
		v.finding, v.at = oneOfThem, -1
	}
	return v
}

// suspicion returns what doubt alone says about the messages of a partition. For several messages
// it says nothing: the next transactions are smaller, down to one message. See [sizing]. Of those that are
// narrowed down already, any may be the one.
func (p policy) suspicion(t trial, shared bool) finding {
	switch {
	case t.narrowed && t.messages > 1:
		return oneOfThem
	case t.messages == 0:
		return nothing
	case t.messages == 1 && !shared:
		return died
	default:
		return doubted
	}
}

// doubt classifies the partitions of a transaction in doubt. All are claimed again. A lost
// connection is no message's fault, unless the same message loses it again and again. So the
// messages at hand are remembered, down to a single one. If a handler had failed before, or calls
// were left that did not begin, the message at hand is known.
func (p policy) doubt(tried []trial, r result) []verdict {
	vs := each(tried, verdict{action: claimAgain, err: r.err})
	unhealthy, shared := errors.Is(r.err, epoch.ErrUnhealthy), len(tried) > 1
	for i, t := range tried {
		v, alone := &vs[i], !shared && t.messages <= 1
		switch {
		case r.handler != nil && i != r.batch && !r.whole, r.cut && i != r.reached.batch:
		case unhealthy && alone:
			v.action = haltInDoubt
		case unhealthy:
			v.finding, v.at = oneOfThem, r.at
		case r.froze > 0: // which is why the connection was lost
		case alone && t.failed == nil && isPermanent(r.handler): // the handler said so
			if *v = p.blame(t, r.at, shared, r.err); v.action == halt {
				v.action = haltInDoubt
			} else {
				v.action = claimAgain
			}
		case r.handler != nil && !alone:
			v.finding, v.at = oneOfThem, r.at
		case r.cut && !alone:
			v.finding, v.at = oneOfThem, r.reached.at
		default:
			v.finding, v.at = p.suspicion(t, shared), -1
		}
	}
	return vs
}

// enoughDeaths is how many transactions in a row, with the message alone, make an attempt.
const enoughDeaths = 3

// died classifies a message that was alone in several transactions in a row that were in doubt. The
// claims between them found no other claim, and a transaction without the message committed. After
// enoughDeaths the message has failed an attempt.
func (p policy) died(t trial, deaths int, err error) verdict {
	if deaths < enoughDeaths {
		return verdict{action: claimAgain, err: err}
	}
	cause := &deathsError{deaths, err}
	if t.failed != nil && t.attempts+1 < p.maxAttempts {
		return verdict{action: retry, finding: attempt, err: cause}
	}
	return p.blame(t, 0, false, cause)
}

// failure classifies a partition whose transaction was rolled back for certain, and where no fence
// refused. The order matters: whatever may have failed for another reason than the message comes
// before blame (L2).
func (p policy) failure(t trial, r result, shared bool) verdict {
	cause := r.err
	if r.handler != nil {
		cause = r.handler
	}
	alone := t.messages <= 1 && !shared
	permanent := isPermanent(cause)
	switch {
	// The message is not at fault: it may do what it wants, but in a transaction of its own.
	case errors.Is(cause, epoch.ErrOwnTransaction) && (shared || t.messages > 1 && r.at >= 0):
		return verdict{action: retry, finding: needsOwn, at: r.at, err: cause}
	case errors.Is(r.err, epoch.ErrUnhealthy) && !permanent && t.failed == nil:
		if alone {
			return verdict{action: halt, err: t.at(r.err)}
		}
		return verdict{action: retry, finding: oneOfThem, at: r.at, err: r.err}
	case r.froze > 0 && !permanent:
		// The freeze is at fault, not the message.
		err := fmt.Errorf("this process did not run for %v meanwhile: %w", r.froze.Round(time.Millisecond), r.err)
		return verdict{action: retry, finding: transient, err: err}
	case errors.Is(r.err, epoch.ErrTransient) && !permanent:
		return verdict{action: retry, finding: transient, err: r.err}
	case t.messages == 0 && alone:
		return verdict{action: claimAgain, err: r.err}
	case errors.Is(r.err, epoch.ErrTooLarge) && !alone:
		return verdict{action: retry, finding: tooMany, err: r.err}
	case r.timedOut && !alone:
		// The message at hand when time ran out need not be the slow one.
		return verdict{action: retry, finding: tooMany, err: r.err}
	// The text says which limit was too short, because the error itself is often that of a
	// cancelled query.
	case r.timedOut && r.limit > 0 && r.handling > r.limit*3/4: // the rest may have gone by before it
		cause = fmt.Errorf("the handler took %v, BatchTimeout is %v: %w", r.handling.Round(time.Millisecond), r.limit, cause)
	}
	return p.blame(t, r.at, shared, cause)
}

func (t trial) at(err error) error {
	if t.messages == 0 {
		return err
	}
	return fmt.Errorf("%s: the message at offset %d cannot be applied: %w", t.partition, t.first, err)
}

// blame classifies a partition with a message at fault: the one at index at, or any of them if at
// is negative. A message that is alone has failed an attempt.
func (p policy) blame(t trial, at int, shared bool, cause error) verdict {
	switch {
	case t.failed != nil: // it was OnFailure that failed
		return verdict{action: halt, err: &onFailureError{t.failed, cause}}
	case t.messages > 1 || shared:
		return verdict{action: retry, finding: oneOfThem, at: at, err: cause}
	}
	failure := &HandlerError{Partition: t.partition, Offset: t.first, Attempts: t.attempts + 1, Err: cause}
	_, later := deferral(cause)
	switch last := isPermanent(cause) || failure.Attempts >= p.maxAttempts; {
	case later && p.defers:
		return verdict{action: retry, finding: deferred, err: failure}
	case !last:
		return verdict{action: retry, finding: attempt, err: cause}
	case !p.onFailure:
		return verdict{action: halt, finding: attempt, err: failure}
	default:
		return verdict{action: retry, finding: lastAttempt, err: failure}
	}
}
