package castest

import (
	"fmt"

	"github.com/epochfence/epochfence/cas"
)

// show is an item on a few lines.
func show(item cas.Item) string {
	return fmt.Sprintf("%q live=%v version=%q number=%d\n  value %s\n  note  %s",
		shorter(item.Key), item.Live, item.Version, item.Number, shorter(string(item.Value)), shorter(string(item.Note)))
}

func shorter(s string) string {
	const limit = 60
	if len(s) <= limit {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:limit], len(s))
}
