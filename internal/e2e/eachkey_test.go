package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// processKeys is a worker process whose handlers wait beside each other.
func processKeys(ctx context.Context, s processSpec, source consumer.Source, told <-chan struct{}, o consumer.Options) int {
	pool, err := pgxpool.New(ctx, s.PostgreSQL)
	if err != nil {
		return complain(err)
	}
	defer pool.Close()
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return complain(err)
	}
	var once sync.Once
	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if strings.HasPrefix(string(m.Value), marker) {
			once.Do(func() {
				fmt.Println("marker", m.Partition.Number)
				<-told
			})
		}
		if err := s.deferred(m, told); err != nil {
			return err
		}
		<-time.After(2 * time.Millisecond) // another service
		_, err := tx.Exec(context.WithoutCancel(ctx), "insert into effects (number, key, value, epoch, worker) values ($1, $2::text, $3::text, $4, $5::text)",
			m.Partition.Number, string(m.Key), string(m.Value), int64(e), s.Name)
		return err
	}
	if err := consumer.Run(ctx, source, sink, consumer.EachKey(handle, 16), o); err != nil {
		return complain(err)
	}
	return 0
}
