package kafkatest_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

func TestMain(m *testing.M) {
	os.Exit(kafkatest.Main(m))
}

func TestBrokerKeepsItsAddressAndDataThroughStopAndKill(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Config{})
	client := dial(t, kgo.SeedBrokers(b.Addr), kgo.DefaultProduceTopic("orders"))
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	before := clusterID(t, admin)

	produce(t, client, "stopped after this")
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, client, "killed after this")
	b.Kill()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, client, "and once more")

	ends, err := admin.ListEndOffsets(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if end, _ := ends.Lookup("orders", 0); end.Err != nil || end.Offset != 3 {
		t.Errorf("log ends at %d (%v), want 3", end.Offset, end.Err)
	}
	if after := clusterID(t, admin); after != before {
		t.Errorf("cluster id %q became %q", before, after)
	}
	if _, err := os.Stat(filepath.Join(b.DataDir, "orders-0")); err != nil {
		t.Errorf("no directory of partition orders/0: %v", err)
	}
}

func TestUsersLogInAndNeedPermissions(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": `s"e\cret`}, ACLs: true})
	if _, err := kadm.NewClient(dial(t, kgo.SeedBrokers(b.Addr))).CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	login := func(password string) kgo.Opt {
		return kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism())
	}
	topics := func(opt kgo.Opt) (kadm.TopicDetails, error) {
		return kadm.NewClient(dial(t, kgo.SeedBrokers(b.SASLAddr), opt)).ListTopics(t.Context(), "orders")
	}
	if _, err := topics(login(`s"e\cret`)); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("right password, no permission: %v, want %v", err, kerr.TopicAuthorizationFailed)
	}
	if _, err := topics(login("guess")); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("wrong password: %v, want %v", err, kerr.SaslAuthenticationFailed)
	}
}

func TestSharedBrokerIsOne(t *testing.T) {
	if a, b := kafkatest.Shared(t), kafkatest.Shared(t); a != b {
		t.Errorf("Shared returned %s, then %s", a, b)
	}
}

func TestFailedStartShowsTheBrokersLog(t *testing.T) {
	libs := kafkatest.Libs(t)
	_, err := kafkatest.New(t.Context(), libs, t.TempDir(), kafkatest.Config{
		Properties: map[string]string{"log.segment.bytes": "several"},
	})
	if err == nil || !strings.Contains(err.Error(), "log.segment.bytes") {
		t.Errorf("start with a bad property: %v, want an error that shows the property's name", err)
	}
}

func dial(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func produce(t *testing.T, client *kgo.Client, value string) {
	t.Helper()
	if err := client.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
		t.Fatalf("produce %q: %v", value, err)
	}
}

func clusterID(t *testing.T, admin *kadm.Client) string {
	t.Helper()
	meta, err := admin.BrokerMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return meta.Cluster
}
