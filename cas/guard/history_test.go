package guard

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestWhatBecomesOfAChangeFollowsFromTheHistoriesAlone(t *testing.T) {
	t.Parallel()
	was := history{Log: "log", Era: 5, Epoch: 8, From: 95, Changes: []change{{At: 97, Mark: 7}, {At: 100, Mark: 7}}}
	for name, c := range map[string]struct {
		s    Stamp
		want epoch.Offset // of the change that the message had made, or 0
		err  error
	}{
		"the next message":                               {Stamp{Log: "log", Era: 5, Epoch: 8, Offset: 101, Mark: 9}, 0, nil},
		"a later message of the next owner":              {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 300, Mark: 9}, 0, nil},
		"the same message":                               {Stamp{Log: "log", Era: 5, Epoch: 8, Offset: 100, Mark: 7}, 100, nil},
		"the same message, of the next owner":            {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 100, Mark: 7}, 100, nil},
		"the same offset without a mark":                 {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 100, Mark: epoch.NoMark}, 100, nil},
		"another message at the offset":                  {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 100, Mark: 8}, 0, ErrTruncated},
		"a message before the position":                  {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 94, Mark: 7}, 0, ErrPassed},
		"an earlier message of the same batch":           {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 97, Mark: 7}, 97, nil},
		"one that did not change the item then":          {Stamp{Log: "log", Era: 5, Epoch: 9, Offset: 98, Mark: 7}, 0, ErrNew},
		"the next message, of the owner before":          {Stamp{Log: "log", Era: 5, Epoch: 7, Offset: 101, Mark: 9}, 0, ErrStale},
		"the same message, of the owner before":          {Stamp{Log: "log", Era: 5, Epoch: 7, Offset: 100, Mark: 7}, 0, ErrStale},
		"an earlier message, after a rewind":             {Stamp{Log: "log", Era: 9, Epoch: 10, Offset: 3, Mark: 1}, 0, nil},
		"the same message, after a rewind":               {Stamp{Log: "log", Era: 9, Epoch: 10, Offset: 100, Mark: 7}, 0, nil},
		"an owner of before a rewind":                    {Stamp{Log: "log", Era: 3, Epoch: 4, Offset: 101, Mark: 9}, 0, ErrStale},
		"a fence that has lost an operator's action":     {Stamp{Log: "log", Era: 3, Epoch: 8, Offset: 101, Mark: 9}, 0, ErrFenceLost},
		"a later one of that fence":                      {Stamp{Log: "log", Era: 3, Epoch: 9, Offset: 101, Mark: 9}, 0, ErrFenceLost},
		"an action under an epoch that was there before": {Stamp{Log: "log", Era: 6, Epoch: 8, Offset: 101, Mark: 9}, 0, ErrFenceLost},
		"another log": {Stamp{Log: "new", Era: 5, Epoch: 9, Offset: 101, Mark: 9}, 0, ErrOtherLog},
		"another log that an operator has accepted": {Stamp{Log: "new", Era: 9, Epoch: 10, Offset: 0, Mark: 9}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, err := c.s.after(was, nil)
			got := epoch.Offset(0)
			if before != nil {
				got = before.At
			}
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%v, %v; want %v, %v", got, err, c.want, c.err)
			}
		})
	}
}
