package consumer

import "github.com/epochfence/epochfence/epoch"

type Batch struct {
	Messages []Message
	Next     epoch.Offset
	Mark     epoch.Mark
	Marks    []epoch.Mark
}

func toBatches(ms []Message) []Batch {
	var bs []Batch
	var b Batch
	for _, m := range ms {
		if m.Control {
			b.Next, b.Mark = m.Offset+1, m.Mark
			bs = append(bs, b)
			b = Batch{}
			continue
		}
		b.Messages = append(b.Messages, m)
		b.Marks = append(b.Marks, m.Mark)
		b.Next, b.Mark = m.Offset+1, m.Mark
	}
	if len(b.Messages) > 0 {
		bs = append(bs, b)
	}
	return bs
}
