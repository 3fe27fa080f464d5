package statusz

import (
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/remedies"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file words the events of this process and the entries of the audit log for the page.

type moment struct{ At, Class, Kind, Partition, Epoch, Text string }

func (h *Handler) moments(ms []stats.Moment, js jobs, now time.Time) (shown []moment) {
	for _, m := range ms[:min(len(ms), listed)] {
		at := js.position(m.Partition, m.Next)
		one := moment{At: clock(m.At, now), Kind: m.Kind.String(), Class: classOf(m.Kind)}
		if m.Kind == stats.Halted && m.Reason == consumer.ReasonPaused {
			one.Kind, one.Class = "paused", "waiting"
		}
		if m.Partition != (epoch.Partition{}) {
			one.Partition = show(m.Partition.String())
		}
		if m.Epoch > 0 {
			one.Epoch = thousands(int64(m.Epoch))
		}
		switch m.Kind {
		case stats.Takeover:
			one.Text = fmt.Sprintf("from %s, which had it under epoch %d; continues at %s", h.owner(m.OtherOwner).Name, m.OtherEpoch, at)
		case stats.Refused:
			one.Text = fmt.Sprintf("at %s; %s has it under epoch %d", at, h.owner(m.OtherOwner).Name, m.OtherEpoch)
		case stats.ReceiverRefused:
			one.Text = fmt.Sprintf("the receiver knows epoch %d", m.OtherEpoch)
		case stats.Halted:
			one.Text = fmt.Sprintf("at %s, %s: %s", at, m.Reason, show(m.Text))
		case stats.GoesOn:
			one.Text = fmt.Sprintf("at %s, after %s", at, m.Reason)
		case stats.Lost:
			one.Text = fmt.Sprintf("at %s, %s: %s", at, m.Reason, show(m.Text))
		case stats.Joined, stats.Left, stats.WentBack, stats.Overdue, stats.Suspected, stats.SuspicionWrong:
			one.Text = show(m.Text)
		}
		shown = append(shown, one)
	}
	return shown
}

func classOf(k stats.MomentKind) string {
	switch k {
	case stats.Halted, stats.WentBack, stats.Overdue:
		return "halted"
	case stats.Refused, stats.ReceiverRefused, stats.Lost, stats.Left, stats.Suspected, stats.SuspicionWrong:
		return "waiting"
	default:
		return "well"
	}
}

// selected returns the decisions about the partitions that the overview shows.
func (h *Handler) selected(ds []operate.Decision) []operate.Decision {
	return slices.DeleteFunc(slices.Clone(ds), func(d operate.Decision) bool {
		return h.Filter.Group != "" && h.Filter.Group != d.Partition.Group || h.Filter.Topic != "" && h.Filter.Topic != d.Partition.Topic
	})
}

// decisions describes decisions of the sink's audit log.
func (h *Handler) decisions(ds []operate.Decision, js jobs, now time.Time) (shown []moment) {
	for i, d := range ds {
		if len(shown) == listed {
			break
		}
		from, to := js.position(d.Partition, d.From), js.position(d.Partition, d.To)
		one := moment{At: clock(d.At, now), Kind: string(d.Kind), Class: "well", Partition: show(d.About())}
		if d.Epoch > 0 {
			one.Epoch = thousands(int64(d.Epoch))
		}
		switch d.Kind {
		case operate.DecidedClaim:
			one.Kind, one.Text = h.claimed(d, before(ds[i+1:], d), to)
		case operate.DecidedStale:
			one.Kind, one.Class = "refused", "waiting"
			one.Text = h.owner(d.Owner).Name + ": " + show(d.Reason)
		case operate.DecidedHalt:
			one.Kind, one.Class = "halted", "halted"
			if r, known := remedies.For(d.Reason); known && r.Reason == consumer.ReasonPaused {
				one.Kind, one.Class = "paused", "waiting"
			}
			one.Text = h.owner(d.Owner).Name + ", at " + to + ": " + show(d.Reason)
		case operate.DecidedRecovery:
			one.Text = h.owner(d.Owner).Name + ", at " + to + ": " + show(d.Reason)
		case operate.DecidedHang, operate.DecidedOnFailureHang:
			one.Class = "halted"
			one.Text = h.owner(d.Owner).Name + hungOn(d, from, to) + ": " + show(d.Reason)
		case operate.DecidedLoss, operate.DecidedInDoubt, operate.DecidedSuspected:
			one.Class = "waiting"
			one.Text = h.owner(d.Owner).Name + ": " + show(d.Reason)
		default:
			if d.Kind == operate.DecidedReplayFailure {
				one.Class = "halted"
			}
			one.Text = show(d.Reason)
			if d.From != d.To && d.From >= 0 {
				one.Text = "from " + from + " to " + to + "; " + one.Text
			}
			if d.By != "" {
				one.Text = "by " + show(d.By) + ": " + one.Text
			}
		}
		shown = append(shown, one)
	}
	return shown
}

func hungOn(d operate.Decision, from, to string) string {
	switch {
	case d.From < 0:
		return ""
	case d.To == d.From+1:
		return ", at " + from
	default:
		return ", in [" + from + ", " + to + ")"
	}
}

// before returns the decision before d that swapped in a claim of its partition, among older
// decisions, newest first. It returns the zero decision if there is none.
func before(older []operate.Decision, d operate.Decision) operate.Decision {
	for _, o := range older {
		if o.Partition == d.Partition && o.Kind.ReplacesClaim() {
			return o
		}
	}
	return operate.Decision{}
}

// claimed describes a claim and the claim before it, which may be unknown.
func (h *Handler) claimed(d, before operate.Decision, to string) (kind, text string) {
	at := ", continues at " + to
	switch {
	case d.From < 0:
		return "first claim", "by " + h.owner(d.Owner).Name + ", begins at " + to
	case before.Epoch == 0:
		return "claim", "by " + h.owner(d.Owner).Name + at
	case before.Owner == d.Owner:
		return "claim", h.owner(d.Owner).Name + " again" + at
	case before.Kind != operate.DecidedClaim:
		return "claim", "by " + h.owner(d.Owner).Name + ", after what " + show(before.By) + " did" + at
	default:
		return "takeover", "by " + h.owner(d.Owner).Name + ", from " + h.owner(before.Owner).Name + at
	}
}
