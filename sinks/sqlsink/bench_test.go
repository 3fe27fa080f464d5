package sqlsink_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// BenchmarkCommit compares a fenced transaction over some partitions, some
// messages each, with the same statements in a transaction of database/sql.
func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct{ partitions, messages int }{{1, 1}, {10, 1}, {1, 256}, {10, 25}} {
		name := fmt.Sprintf("partitions=%d/messages=%d/", c.partitions, c.messages)
		b.Run(name+"fenced", func(b *testing.B) {
			db := open(b, newFile(b))
			s := newSink(b, db, sqlsink.Options{})
			var as []epoch.Advance
			for n := range c.partitions {
				o := epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: int32(n)}}
				if err := s.Seed(b.Context(), []epoch.Start{{Origin: o}}); err != nil {
					b.Fatal(err)
				}
				f, err := epoch.FenceOf(b.Context(), s, o.Partition)
				if err != nil {
					b.Fatal(err)
				}
				if f, err = s.Claim(b.Context(), f, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1})); err != nil {
					b.Fatal(err)
				}
				as = append(as, advance(f, c.messages)...)
			}
			for b.Loop() {
				err := s.Commit(b.Context(), as, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
					for range c.partitions * c.messages {
						if err := appendEffect(ctx, tx, "l", "v"); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				for i := range as {
					as[i].From, as[i].To = as[i].To, as[i].To+epoch.Offset(c.messages)
				}
			}
			b.ReportMetric(float64(b.N*c.partitions*c.messages)/b.Elapsed().Seconds(), "messages/s")
		})
		b.Run(name+"plain", func(b *testing.B) {
			db := open(b, newFile(b))
			for b.Loop() {
				ctx, cancel := context.WithCancel(b.Context()) // as a handler's is
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					b.Fatal(err)
				}
				for range c.partitions * c.messages {
					if err := plainEffect(ctx, tx); err != nil {
						b.Fatal(err)
					}
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
			b.ReportMetric(float64(b.N*c.partitions*c.messages)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

func plainEffect(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (?, ?)`, "l", "v")
	return err
}
