package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// side is one column. Its topic and group have the column's ID as their name.
type side struct {
	*inventory
	column  *show.Column
	items   int
	books   books   // made by Prepare
	sent    []place // of each message
	verdict verdict
}

// place is a message's partition and offset.
type place struct {
	partition int32
	offset    int64
}

func (v *inventory) Side(c *show.Column) show.Side {
	return &side{inventory: v, column: c, items: catalogue(v.Partitions), sent: make([]place, v.Messages)}
}

func (sd *side) Config(n int) any {
	c := config{
		Baseline: sd.column.Name == show.Baseline, Worker: workerName(n), Brokers: strings.Split(sd.brokers, ","),
		Topic: sd.column.ID, Group: sd.column.ID, Database: sd.column.DB.URL, Schema: sd.column.DB.Schema, Session: sd.session,
	}
	if sd.store != nil {
		c.Store = sd.store.url
	}
	return c
}

func workerName(n int) string { return "worker " + strconv.Itoa(n) }

func (sd *side) Prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	if err := sd.makeBooks(ctx); err != nil {
		return err
	}
	r, err := sd.admin.CreateTopic(ctx, int32(sd.Partitions), -1, nil, sd.column.ID)
	if err = errors.Join(err, r.Err); err != nil {
		return fmt.Errorf("create topic %s: %w", sd.column.ID, err)
	}
	return nil
}

func (sd *side) makeBooks(ctx context.Context) error {
	if sd.store == nil {
		sd.books = sqlBooks{sd.column.DB}
		return makeTables(ctx, sd.column, sd.items)
	}
	books := itemBooks{sd.store.store, sd.column.ID}
	sd.books = books
	return books.create(ctx, sd.column, sd.items)
}

// makeTables makes the tables of a column, and what its status page shows.
func makeTables(ctx context.Context, c *show.Column, items int) (err error) {
	tables, db := sqliteTables, c.DB
	if db.Pool != nil {
		tables = postgresTables
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	stock := make([]string, items)
	for n := range stock {
		stock[n] = fmt.Sprintf("('%s', %d)", itemName(n), initial)
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO stock (item, present) VALUES "+strings.Join(stock, ", ")); err != nil {
		return fmt.Errorf("put %d items in stock: %w", items, err)
	}
	c.Page.Title = "inventory"
	if db.Pool == nil {
		if err := sqlsink.Migrate(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{}); err != nil {
			return err
		}
		c.Page.Operator, err = sqlsink.OpenOperator(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
		return err
	}
	if err := pgsink.Migrate(ctx, db.Pool, pgsink.Options{Schema: db.Schema}); err != nil {
		return err
	}
	c.Page.Operator, err = pgsink.OpenOperator(ctx, db.Pool, pgsink.Options{Schema: db.Schema})
	return err
}

// Send keys the messages by item.
func (sd *side) Send(ctx context.Context, from, to int) error {
	records := make([]*kgo.Record, to-from)
	for i := range records {
		r := reservation(sd.Seed, from+i, sd.items)
		value, err := json.Marshal(r)
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: sd.column.ID, Key: []byte(r.Item), Value: value}
	}
	if err := sd.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("send to %s: %w", sd.column.ID, err)
	}
	for i, r := range records {
		sd.sent[from+i] = place{r.Partition, r.Offset}
	}
	return nil
}

func (sd *side) Applied(ctx context.Context) (int, error) {
	return sd.books.applied(ctx)
}

func (sd *side) Elsewhere(ctx context.Context, subject string, not int) (bool, error) {
	partition, offset, _ := show.Position(subject)
	return sd.books.elsewhere(ctx, place{partition, offset}, workerName(not))
}

func (sd *side) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	sd.verdict, err = judge(ctx, sd.books, sd.Seed, sd.items, sd.sent)
	return sd.verdict.exact(), sd.verdict.rows(), err
}

func (sd *side) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), show.Preparing)
	defer cancel()
	if sd.books != nil {
		if err := sd.books.remove(ctx); err != nil {
			return err
		}
	}
	t, err := sd.admin.DeleteTopic(ctx, sd.column.ID)
	if err = errors.Join(err, t.Err); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("delete topic %s: %w", sd.column.ID, err)
	}
	g, err := sd.admin.DeleteGroup(ctx, sd.column.ID)
	if err = errors.Join(err, g.Err); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("delete group %s: %w", sd.column.ID, err)
	}
	return nil
}
