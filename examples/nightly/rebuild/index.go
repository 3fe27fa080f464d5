package rebuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// Index rebuilds a search index in object storage, part by part, as a [schedule.Job]. Readers find the
// parts of the last complete build in the pointer, which is an item of Pointers with the job's name.
type Index struct {
	Objects  *s3.Client
	Bucket   string
	Prefix   string    // of the names of parts
	Pointers cas.Store // in the same bucket, or in any other store
	Parts    int
	Part     func(job string, tick time.Time, part int) []byte // no two calls need return the same
}

// Pointer is the value of a pointer, as JSON.
type Pointer struct {
	Tick  time.Time `json:"tick"`
	Parts []Object  `json:"parts"`
}

// Object is a part, as it was committed.
type Object struct {
	Name string `json:"name"`
	Sum  string `json:"sum"` // SHA-256, in hexadecimal
}

// Step writes one part of the index. The step after the last part sets the pointer.
func (x *Index) Step(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) (done bool, err error) {
	switch {
	case t.Step < x.Parts:
		return false, x.write(ctx, tx, t, e)
	case t.Step == x.Parts:
		return true, x.publish(ctx, tx, t, e)
	}
	return true, nil // the process that has published ended before it could say that it was done
}

// write writes a part under a name with the epoch, because a pod that wakes up here no longer owns the
// job. Its object replaces none of the new owner's, and no pointer names it: its row is rolled back.
func (x *Index) write(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) error {
	name := fmt.Sprintf("%s%s/%s/part-%d-epoch-%d", x.Prefix, t.Job, t.At.Format(time.RFC3339), t.Step, e)
	content := x.Part(t.Job, t.At, t.Step)
	_, err := x.Objects.PutObject(ctx, &s3.PutObjectInput{Bucket: &x.Bucket, Key: &name, Body: bytes.NewReader(content)})
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO parts (job, tick, part, object, sum) VALUES (?, ?, ?, ?, ?)`, t.Job, t.At.Unix(), t.Step, name, sum(content))
	return err
}

// publish sets the pointer to the parts that were committed. The guard refuses a pod that wakes up here
// after the new owner has set the pointer.
func (x *Index) publish(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick, e epoch.Epoch) error {
	parts, err := committed(ctx, tx, t)
	if err != nil {
		return err
	}
	value, err := json.Marshal(Pointer{t.At, parts})
	if err != nil {
		return err
	}
	_, err = guard.At(x.Pointers, t.Message).Update(ctx, t.Job, func(guard.State) (guard.State, []byte, error) {
		return guard.Text(string(value)), nil, nil
	})
	if err != nil && !errors.Is(err, guard.ErrPassed) {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO builds (job, tick, epoch) VALUES (?, ?, ?)`, t.Job, t.At.Unix(), e)
	return err
}

// committed returns the objects of the tick's earlier steps, in order.
func committed(ctx context.Context, tx *sqlsink.Tx, t schedule.Tick) (parts []Object, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT object, sum FROM parts WHERE job = ? AND tick = ? ORDER BY part`, t.Job, t.At.Unix())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var o Object
		if err := rows.Scan(&o.Name, &o.Sum); err != nil {
			return nil, err
		}
		parts = append(parts, o)
	}
	return parts, rows.Err()
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
