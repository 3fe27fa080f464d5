package stock

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/internal/show"
)

// books are where a column keeps its stock, with a line for each reservation that was deducted.
type books interface {
	// read passes on each line, in the order of the deductions as far as it has one, and then how much
	// of each item is present.
	read(ctx context.Context, each func(line), stock func(item string, present int64)) error
	// applied counts the reservations that have a line.
	applied(ctx context.Context) (int, error)
	// elsewhere reports whether another worker has a line of this place or a later one of its partition.
	elsewhere(ctx context.Context, at place, not string) (bool, error)
	// remove removes what the show's parent does not remove with the database.
	remove(ctx context.Context) error
}

// line is a deduction.
type line struct {
	Reservation
	Epoch  int64
	Worker string
	at     place
	order  int32 // lines of one number are in order: those of a partition, or of a partition and an item
}

type sqlBooks struct{ db *show.Database }

func (b sqlBooks) read(ctx context.Context, each func(line), stock func(string, int64)) error {
	const ledger = `SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch FROM ledger ORDER BY seq`
	err := b.db.Each(ctx, ledger, func(scan show.Scan) error {
		var l line
		err := scan(&l.ID, &l.Item, &l.Quantity, &l.at.partition, &l.at.offset, &l.Epoch)
		l.order = l.at.partition
		each(l)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	err = b.db.Each(ctx, `SELECT item, present FROM stock`, func(scan show.Scan) error {
		var (
			item string
			n    int64
		)
		err := scan(&item, &n)
		stock(item, n)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the stock: %w", err)
	}
	return nil
}

func (b sqlBooks) applied(ctx context.Context) (int, error) {
	return b.db.Count(ctx, `SELECT count(DISTINCT reservation) FROM ledger`)
}

func (b sqlBooks) elsewhere(ctx context.Context, at place, not string) (bool, error) {
	found, err := b.db.Count(ctx, `SELECT count(*) FROM ledger WHERE kafka_partition = $1 AND kafka_offset >= $2 AND worker <> $3`,
		at.partition, at.offset, not)
	return found > 0, err
}

func (b sqlBooks) remove(context.Context) error { return nil }
