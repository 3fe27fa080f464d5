package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
)

// side is one column. Its topic and group have the column's ID as their name.
type side struct {
	*inventory
	column *show.Column
	items  int
	books  books
	sent   []place // of each message

	verdict   verdict
	published show.Findings // with -publish
}

// place is a message's partition and offset.
type place struct {
	partition int32
	offset    int64
}

func (v *inventory) Side(c *show.Column) show.Side {
	sd := &side{inventory: v, column: c, items: catalogue(v.Partitions), sent: make([]place, v.Messages)}
	if sd.books = (sqlBooks{c}); v.store != nil {
		sd.books = itemBooks{v.store, c}
	}
	return sd
}

func (sd *side) Config(worker string) any {
	return config{
		Worker: worker, Brokers: strings.Split(sd.brokers, ","), Topic: sd.column.ID, Group: sd.column.ID,
		Store: sd.sink, Publish: sd.publish, Session: sd.session,
	}
}

func (sd *side) Prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	if err := sd.books.create(ctx, sd.items); err != nil {
		return fmt.Errorf("put %d items in stock: %w", sd.items, err)
	}
	for _, topic := range sd.topics() {
		if _, err := sd.admin.CreateTopic(ctx, int32(sd.Partitions), -1, nil, topic); err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	return nil
}

func (sd *side) topics() []string {
	if sd.publish {
		return []string{sd.column.ID, published(sd.column.ID), positions(sd.column.ID)}
	}
	return []string{sd.column.ID}
}

func (sd *side) Play(ctx context.Context) error {
	return sd.Load.Play(ctx, sd.column, sd.send, sd.applied)
}

// applied does not count messages whose records wait in the outbox.
func (sd *side) applied(ctx context.Context) (int, error) {
	n, err := sd.books.applied(ctx)
	if err != nil || !sd.publish || n < sd.Messages {
		return n, err
	}
	table := "outbox_entry"
	if sd.column.DB.Pool == nil {
		table = "epochfence_" + table
	}
	waiting, err := sd.column.DB.Count(ctx, `SELECT count(*) FROM `+table+` WHERE method = 'PRODUCE'`)
	return n - waiting, err
}

// send keys the messages by item.
func (sd *side) send(ctx context.Context, from, to int) error {
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

func (sd *side) Elsewhere(ctx context.Context, subject string, _ show.Point, worker string) (bool, error) {
	partition, offset, _ := show.Position(subject)
	return sd.books.elsewhere(ctx, place{partition, offset}, worker)
}

func (sd *side) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	sd.verdict, err = judge(ctx, sd.books, sd.Seed, sd.items, sd.sent)
	if exact, rows = sd.verdict.exact(), sd.verdict.rows(); err != nil || !sd.publish {
		return exact, rows, err
	}
	sd.published, err = sd.audit(ctx)
	rows = append(rows, sd.published.Rows("records published")...)
	return exact && sd.published.Exact(), append(rows, show.Number("refused by Kafka", sd.column.Crew.Outcomes(show.Refused))), err
}

func (sd *side) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), show.Preparing)
	defer cancel()
	if err := sd.books.remove(ctx); err != nil {
		return fmt.Errorf("remove the items of %s: %w", sd.column.ID, err)
	}
	groups := []string{sd.column.ID}
	for n := 0; sd.publish && n < sd.Partitions; n++ {
		groups = append(groups, fmt.Sprintf("%[1]s/%[1]s/%[1]s/%d", sd.column.ID, n)) // of the relays
	}
	for _, group := range groups {
		if _, err := sd.admin.DeleteGroup(ctx, group); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return fmt.Errorf("delete group %s: %w", group, err)
		}
	}
	for _, topic := range sd.topics() {
		if _, err := sd.admin.DeleteTopic(ctx, topic); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("delete topic %s: %w", topic, err)
		}
	}
	return nil
}

// verdict is the result of one column, from its database and the sent messages alone.
type verdict struct {
	show.Findings
	Units  int64 // of stock, missing or too many, over all items
	Unsung int   // items whose stock does not match the ledger
}

func (v verdict) exact() bool { return v.Exact() && v.Units == 0 && v.Unsung == 0 }

// judge compares the books with the messages of seed, whose places are sent.
func judge(ctx context.Context, b books, seed uint64, items int, sent []place) (v verdict, err error) {
	audit, deducted, present := show.NewAudit(len(sent)), make(map[string]int64, items), map[string]int64{}
	err = b.read(ctx, func(l line) {
		deducted[l.Item] += l.Quantity
		audit.Add(l.effect(seed, items, sent))
	}, func(item string, n int64) { present[item] = n })
	if err != nil {
		return v, fmt.Errorf("read the stock: %w", err)
	}
	reserved := make(map[string]int64, items)
	for i := range sent {
		r := reservation(seed, i, items)
		reserved[r.Item] += r.Quantity
	}
	v.Findings = audit.Findings
	for n := range items {
		item := itemName(n)
		v.Units += max(initial-reserved[item]-present[item], present[item]-initial+reserved[item])
		if present[item] != initial-deducted[item] {
			v.Unsung++
		}
	}
	return v, nil
}

// effect returns what an audit of the messages of seed, whose places are sent, finds in a line.
func (l line) effect(seed uint64, items int, sent []place) show.Effect {
	e := show.Effect{Message: int(l.ID), Group: l.group, Offset: l.at.offset, Epoch: l.Epoch}
	if l.ID < 0 || l.ID >= int64(len(sent)) || l.Reservation != reservation(seed, int(l.ID), items) || l.at != sent[l.ID] {
		e.Message = -1
	}
	return e
}

func (v verdict) rows() []show.Row {
	rows := append([]show.Row{show.Number("messages sent", v.Sent)}, v.Rows("effects applied")...)
	return append(rows,
		show.Holds("stock conserved", v.Units == 0, show.Thousands(int(v.Units))+" units off"),
		show.Holds("stock and ledger agree", v.Unsung == 0, "for "+show.Thousands(v.Unsung)+" items"))
}
