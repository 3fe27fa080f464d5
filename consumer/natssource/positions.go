package natssource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/lease"
)

// This file writes positions into the bucket, for operators. Whether ours may replace another is
// decided in committed.go.

// position is the value of a position's key.
type position struct {
	Next  epoch.Offset `json:"next"`
	Print *epoch.Mark  `json:"print,omitempty"` // fingerprint of the message before Next
	Epoch epoch.Epoch  `json:"epoch,omitempty"`
	Owner string       `json:"owner,omitempty"` // the process that wrote the position; other writers leave it out
	Log   string       `json:"log,omitempty"`   // the log of the position; an operator may leave it out
	Lag   int64        `json:"lag,omitempty"`
}

// ours reports whether a process of ours wrote the position.
func (p position) ours() bool { return p.Owner != "" }

// mostPosition is more than any position takes, in bytes.
const mostPosition = 16 << 10

func positionOf(value []byte) (position, error) {
	p := position{Next: -1}
	if len(value) > mostPosition {
		return position{}, fmt.Errorf("it has %d bytes", len(value))
	}
	err := json.Unmarshal(value, &p)
	if err == nil && p.Next < 0 {
		err = errors.New(`it has no "next"`)
	}
	return p, err
}

// positionKey is the key of a position: in the bucket, GROUP.position.STREAM.NUMBER.
func positionKey(group string, p lease.Resource) string {
	return cas.Join(group, "position", p.Name, strconv.Itoa(int(p.Number)))
}

// published is a position's key as this tenure left it. It is guarded by tenure.writing.
type published struct {
	item cas.Item
	lag  int64
}

// write replaces the position, whoever wrote it.
func (t *tenure) write(ctx context.Context, p position) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if t.published.item.Key == "" {
		t.published.item.Key = positionKey(t.s.Group, t.Resource)
	}
	for {
		item, err := t.s.store.Swap(ctx, t.published.item, data, nil)
		if err == nil {
			t.published = published{item, p.Lag}
			return nil
		}
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
		if t.published.item, err = t.s.store.Get(ctx, t.published.item.Key); err != nil {
			return err
		}
	}
}

func (t *tenure) inTime(ctx context.Context, do func(context.Context)) {
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, t.s.LeaseTTL/3)
	defer stop()
	do(ctx)
}

const publishAtOnce = 8

// publishPositions writes changed positions every third of LeaseTTL until ctx ends.
func (s *Source) publishPositions(ctx context.Context) {
	for waits.Sleep(ctx, waits.Jitter(s.LeaseTTL/3)) {
		due := make(chan *tenure)
		var writers sync.WaitGroup
		for range publishAtOnce {
			writers.Go(func() {
				for t := range due {
					t.inTime(ctx, t.publish)
				}
			})
		}
		for _, t := range s.running() {
			due <- t
		}
		close(due)
		writers.Wait()
	}
}
