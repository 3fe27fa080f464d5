package memstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
)

// Numbers repeat in a backup, so that a watch cannot tell by them what is new.
func TestAWatchHasWhatIsWrittenRightAfterABackupWasRestored(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	restore := s.Backup()
	write := func(key string) {
		if _, err := s.Swap(t.Context(), cas.Item{Key: key}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 5 {
		write(fmt.Sprint("lost/", n))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for item, err := range s.Watch(ctx, "") {
		switch {
		case err != nil:
			t.Fatal(err)
		case item.Key == "":
			restore()
			write("new")
		case item.Key == "new":
			return
		}
	}
	t.Fatal("the watch has ended")
}
