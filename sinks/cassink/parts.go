package cassink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/operate"
)

// This file divides the content of a dead letter that does not fit into one item, and puts it
// together.

// content is what is divided of a dead letter that does not fit into an item.
type content struct {
	Key, Value []byte
	Headers    []header
}

// moreOfNote is room for what is added to the note of a dead letter later: requests, and the error of a replay.
const moreOfNote = 16 << 10

// item returns the value and the note of a dead letter's item.
func (l letter) item() (value, note []byte, err error) {
	if l.Parts > 0 {
		l.Key, l.Value, l.Headers = nil, nil, nil
	}
	note, err = json.Marshal(l)
	return l.Value, note, err
}

// divide writes the content of a dead letter into items of its own, if it does not fit into one with the rest.
func (s *Sink) divide(ctx context.Context, l *letter) error {
	value, note, err := l.item()
	if err != nil {
		return err
	}
	key := s.keys.letter(l.Partition, l.ID)
	if s.facts.Check(key, value, note) == nil && (s.facts.MaxNote == 0 || len(note)+moreOfNote <= s.facts.MaxNote) {
		return nil
	}
	text, err := json.Marshal(content{l.Key, l.Value, l.Headers})
	if err != nil {
		return err
	}
	size := s.facts.MaxValue
	if size == 0 {
		size = len(text)
	}
	for part := range slices.Chunk(text, size) {
		l.Parts++
		if _, err := s.store.Swap(ctx, cas.Item{Key: s.keys.part(l.Partition, l.ID, l.Parts)}, part, nil); err != nil {
			return err
		}
	}
	return nil
}

// wholeLetter adds the content to a dead letter whose item does not have it.
func (s *Sink) wholeLetter(ctx context.Context, l letter) (letter, error) {
	var text bytes.Buffer
	for n := range l.Parts {
		it, err := s.store.Get(ctx, s.keys.part(l.Partition, l.ID, n+1))
		if err != nil {
			return l, err
		}
		if !it.Live {
			return l, fmt.Errorf("%w: its part %q is not there", operate.ErrNoDeadLetter, it.Key)
		}
		text.Write(it.Value)
	}
	if l.Parts == 0 {
		return l, nil
	}
	var c content
	if err := json.Unmarshal(text.Bytes(), &c); err != nil {
		return l, fmt.Errorf("the parts of dead letter %d of %s: %w", l.ID, l.Partition, err)
	}
	l.Key, l.Value, l.Headers = c.Key, c.Value, c.Headers
	return l, nil
}

// deleteLetter deletes a dead letter, and then its parts, at best effort.
func (s *Sink) deleteLetter(ctx context.Context, at letterItem) error {
	err := s.store.Delete(ctx, at.stored)
	if err == nil {
		s.deleteParts(ctx, at.letter)
	}
	return err
}

func (s *Sink) deleteParts(ctx context.Context, l letter) {
	for n := range l.Parts {
		if it, err := s.store.Get(ctx, s.keys.part(l.Partition, l.ID, n+1)); err == nil && it.Live {
			_ = s.store.Delete(ctx, it)
		}
	}
}
