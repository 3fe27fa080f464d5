package rebuild

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// index rebuilds search indexes in object storage, part by part. Readers find the parts of the last
// complete build of an index in its pointer, which is an item of pointers with the job's name. Nothing
// deletes old parts here. A lifecycle rule of the bucket can do that.
type index struct {
	objects  *s3.Client
	prefix   string    // of the names of parts
	pointers cas.Store // in the same bucket; any store would do
	parts    int
}

// step writes one part. The step after the last part sets the pointer.
func (x *index) step(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) (done bool, err error) {
	switch {
	case t.Step < x.parts:
		return false, x.write(ctx, tx, t, e)
	case t.Step == x.parts:
		return true, x.publish(ctx, tx, t, e)
	}
	return true, nil // the process that has published ended before it could say that it was done
}

// write writes a part under a name with the epoch, because a pod that wakes up here may no longer own
// the job. Its object replaces no other, and no pointer names it, because its row is rolled back.
func (x *index) write(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) error {
	content := part(t.Job, t.At, t.Step)
	name := fmt.Sprintf("%s%s/%s/part-%d-epoch-%d", x.prefix, t.Job, t.At.Format(time.RFC3339), t.Step, e)
	if err := put(ctx, x.objects, name, content); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO parts (job, tick, part, object, sum) VALUES (?, ?, ?, ?, ?)`,
		t.Job, t.At.Unix(), t.Step, name, sum(content))
	return err
}

// publish sets the pointer to the parts that were committed. The guard refuses a pod that wakes up here
// after a later owner of the job has set it.
func (x *index) publish(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) error {
	var pointer string
	err := tx.QueryRowContext(ctx, `SELECT json_object('tick', ?2, 'parts', json_group_array(json_object('name', object, 'sum', sum) ORDER BY part))
		FROM parts WHERE job = ?1 AND tick = ?2`, t.Job, t.At.Unix()).Scan(&pointer)
	if err != nil {
		return err
	}
	_, err = guard.At(x.pointers, t.Message).Update(ctx, t.Job, func(guard.State) (guard.State, []byte, error) {
		return guard.Text(pointer), nil, nil
	})
	if err != nil && !errors.Is(err, guard.ErrPassed) {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO builds (job, tick, epoch) VALUES (?, ?, ?)`, t.Job, t.At.Unix(), e)
	return err
}

// run runs the jobs that this process gets. To copy it, delete what has to do with stage and pass sink
// itself to consumer.Run, drop HangTimeout, and replace config, put and part by your own.
func (x *index) run(ctx context.Context, c config, leases cas.Store, db *sql.DB, stage *show.Stage) error {
	var all []schedule.Job[*sqlsink.Tx]
	for _, name := range c.Jobs {
		all = append(all, schedule.Job[*sqlsink.Tx]{
			Name: name, Cron: "@every " + c.Every.String(), CatchUp: schedule.CatchUpAll, Overrun: schedule.OverrunQueue, Step: x.step,
		})
	}
	jobs, err := schedule.New(schedule.Options{Store: leases, Group: c.ID, LeaseTTL: c.TTL}, all...)
	if err != nil {
		return err
	}
	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, jobs, show.FencedAt(sink, stage, c.transaction), jobs.Handlers(), consumer.Options{
		MaxBatch: 1, Committers: len(all), HangTimeout: show.HangTimeout,
	})
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
