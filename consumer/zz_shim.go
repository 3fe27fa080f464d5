package consumer

import "github.com/epochfence/epochfence/epoch"

type Batch struct {
	Messages []Message
	Next     epoch.Offset
	Mark     int32
	Marks    []int32
}

func toBatches(ms []Message) []Batch {
	var bs []Batch
	var b Batch
	for _, m := range ms {
		if m.Control {
			b.Next, b.Mark = m.Offset+1, m.LeaderEpoch
			bs = append(bs, b)
			b = Batch{}
			continue
		}
		b.Messages = append(b.Messages, m)
		b.Marks = append(b.Marks, m.LeaderEpoch)
		b.Next, b.Mark = m.Offset+1, m.LeaderEpoch
	}
	if len(b.Messages) > 0 {
		bs = append(bs, b)
	}
	return bs
}
