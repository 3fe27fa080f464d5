package epoch

import (
	"fmt"
	"maps"
	"slices"
)

// This file is a model of a sink, without storage. It decides where a partition begins that has no
// fence (R9), and that the advances of a transaction succeed or fail together.

// Fences is the state of all fences of a sink, as a value. The suite in sinks/sinktest compares
// sinks with it, and memsink stores it. It is not safe for concurrent use.
type Fences map[Partition]Fence

// Read returns the fence of p, or a [*MissingError].
func (fs Fences) Read(p Partition) (Fence, error) {
	f, ok := fs[p]
	if !ok {
		return Fence{}, &MissingError{Partition: p}
	}
	return f, nil
}

// Look returns the fences of ps that exist.
func (fs Fences) Look(ps []Partition) Fences {
	found := Fences{}
	for _, p := range ps {
		if f, ok := fs[p]; ok {
			found[p] = f
		}
	}
	return found
}

// Seed adds an unclaimed fence for each start whose partition has none. All starts must be of one
// group and topic. A fence begins at Start.Next if the group had no fence of that topic before the
// call, and otherwise at Start.Earliest. If a start has no fence and another one has a fence of
// another log, Seed adds none and returns a [*LogChangedError]: under the other log, the group may
// have applied already what the new partition would begin with.
func (fs Fences) Seed(starts []Start) error {
	if len(starts) == 0 {
		return nil
	}
	group, topic := starts[0].Partition.Group, starts[0].Partition.Topic
	for _, s := range starts {
		if s.Partition.Group != group || s.Partition.Topic != topic {
			return fmt.Errorf("epoch: seed %s together with %s: one group and topic at a time", s.Partition, starts[0].Partition)
		}
	}
	for _, s := range starts {
		if s.Next.Offset < 0 || s.Earliest.Offset < 0 {
			return fmt.Errorf("epoch: seed %s at offset %d, or at %d if the group is known: want no negative offset", s.Partition, s.Next.Offset, s.Earliest.Offset)
		}
	}
	known := false
	for p := range fs {
		known = known || p.Group == group && p.Topic == topic
	}
	if err := fs.accepts(starts); err != nil {
		return err
	}
	for _, s := range starts {
		if _, ok := fs[s.Partition]; ok {
			continue
		}
		begin := s.Next
		if known {
			begin = s.Earliest
		}
		fs[s.Partition] = Fence{Origin: s.Origin, Next: begin.Offset, Mark: begin.Mark}
	}
	return nil
}

// accepts returns an error if one of starts has no fence, and the fence of another is of another log.
func (fs Fences) accepts(starts []Start) error {
	added := slices.ContainsFunc(starts, func(s Start) bool { _, ok := fs[s.Partition]; return !ok })
	for _, s := range starts {
		if f, ok := fs[s.Partition]; ok && added && f.Log != s.Log {
			return fmt.Errorf("no fence is added while it is not decided where another partition continues: %w",
				&LogChangedError{Partition: s.Partition, Fence: f.Log, Source: s.Log, Next: f.Next})
		}
	}
	return nil
}

// Claim swaps c in if the fence still has the epoch and claim of seen. It returns the new fence, or
// a [*StaleError] if another claim came first, a [*MissingError] if there is no fence, or an error
// of [Fence.Claimed].
func (fs Fences) Claim(seen Fence, c Claim) (Fence, error) {
	if seen.Partition != c.Partition {
		return Fence{}, fmt.Errorf("epoch: claim of %s after a look at the fence of %s", c.Partition, seen.Partition)
	}
	f, err := fs.Read(c.Partition)
	if err != nil {
		return Fence{}, err
	}
	if f.Epoch != seen.Epoch || f.Claim != seen.Claim {
		return Fence{}, &StaleError{Partition: c.Partition, Ours: c.ID, Held: f}
	}
	next, err := f.Claimed(c)
	if err != nil {
		return Fence{}, err
	}
	fs[c.Partition] = next
	return next, nil
}

// Advance applies all of as, or none of them. On refusal it returns the first error in key order.
// as must not contain a partition twice.
func (fs Fences) Advance(as []Advance) error {
	as = slices.SortedFunc(slices.Values(as), func(a, b Advance) int { return a.Partition.Compare(b.Partition) })
	for i := 1; i < len(as); i++ {
		if as[i].Partition == as[i-1].Partition {
			return fmt.Errorf("epoch: advance %s twice in one transaction", as[i].Partition)
		}
	}
	after := maps.Clone(fs)
	for _, a := range as {
		f, err := after.Read(a.Partition)
		if err != nil {
			return err
		}
		if f, err = f.Advanced(a); err != nil {
			return err
		}
		after[a.Partition] = f
	}
	maps.Copy(fs, after)
	return nil
}
