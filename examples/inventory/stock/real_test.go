package stock

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The long form of this is `make demo ON=real`.
func TestRealKafkaAndPostgresEndExactAndAreLeftAsTheyWere(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	db := pgtest.Start(t)
	showtest.Exact(t, newInventory(), "-publish", "-brokers", broker.Addr, "-database", db.URL, "-messages", "40000", "-partitions", "8", "-duration", "10s")

	ctx := t.Context()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if topics, err := admin.ListTopics(ctx); err != nil || len(topics) > 0 {
		t.Errorf("left in Kafka: topics %v, %v", topics.Names(), err)
	}
	if groups, err := admin.ListGroups(ctx); err != nil || len(groups) > 0 {
		t.Errorf("left in Kafka: groups %v, %v", groups.Groups(), err)
	}
	var schemas []string
	conn := db.Superuser(t)
	rows, _ := conn.Query(ctx, `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'inventory%'`)
	if schemas, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(schemas) > 0 {
		t.Errorf("left in PostgreSQL: %v, %v", schemas, err)
	}
}
