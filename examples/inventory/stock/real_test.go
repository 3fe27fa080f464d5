package stock

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/kafkatest"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/internal/show"
)

// The long form of this is `make demo-real`.
func TestRealKafkaAndPostgresEndExactAndAreLeftAsTheyWere(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	db := pgtest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	status := show.Run(ctx, newInventory(), []string{
		"-brokers", broker.Addr, "-database", db.URL, "-messages", "40000", "-partitions", "8", "-duration", "10s",
	}, &out, &errOut)
	t.Log(out.String() + errOut.String())
	if status != show.StatusExact {
		t.Errorf("status %d", status)
	}
	if !strings.Contains(out.String(), "the baseline's is not exact") {
		t.Error("freezes and kills did the baseline no harm")
	}

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

func TestRealPostgresThatRefusesUsIsSaidClearly(t *testing.T) {
	db := pgtest.Start(t)
	_, powerless := db.Role(t)
	wrong, err := url.Parse(powerless)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword(wrong.User.Username(), "guess")
	for name, c := range map[string]struct{ url, want string }{
		"no permission":    {powerless, "permission denied"},
		"wrong password":   {wrong.String(), "authentication failed"},
		"no such database": {strings.Replace(db.URL, db.Name, "nowhere", 1), `database "nowhere" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			status := show.Run(t.Context(), newInventory(), []string{"-database", c.url}, &out, &errOut)
			if all := out.String() + errOut.String(); status != show.StatusNot || !strings.Contains(all, c.want) {
				t.Errorf("status %d: %s", status, all)
			}
		})
	}
}
