package dynamostore_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/dynamostore"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

// libsEnv is the directory of DynamoDB Local's jars and native libraries. `make stores` fetches
// them.
const libsEnv = "EPOCHFENCE_DYNAMODB_LIBS"

func start(t testing.TB, keeps ...string) *servertest.Server {
	t.Helper()
	java := servertest.Jars(t, libsEnv)
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		keeps := keeps
		if len(keeps) == 0 {
			keeps = []string{"-inMemory"}
		}
		return java("com.amazonaws.services.dynamodbv2.local.main.ServerRunner", append([]string{"-disableTelemetry", "-port", s.Port()}, keeps...)...)
	})
	await(t, s)
	return s
}

func await(t testing.TB, s *servertest.Server) {
	t.Helper()
	servertest.Await(t, "DynamoDB Local answers", func() bool {
		_, err := client(s.Address).ListTables(t.Context(), nil)
		return err == nil
	})
}

// client keeps its connections: DynamoDB Local resets some of those that are opened many at a time.
func client(address string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String("http://" + address), Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("user", "password", ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{MaxConnsPerHost: 128, MaxIdleConnsPerHost: 128}},
	})
}

func create(t testing.TB, c *dynamodb.Client, table string, keyType types.ScalarAttributeType) {
	t.Helper()
	_, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: &table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("scope"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("key"), AttributeType: keyType},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("scope"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("key"), KeyType: types.KeyTypeRange},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, c *dynamodb.Client, table string) cas.Store {
	t.Helper()
	s, err := dynamostore.Open(t.Context(), c, dynamostore.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRealSuite(t *testing.T) { t.Parallel(); castest.Run(t, onTables(t)) }

func TestRealLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, onTables(t)) }

func TestRealItems(t *testing.T) { t.Parallel(); guardtest.Run(t, onTables(t)) }

func TestRealConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, onTables(t)) }

func TestRealAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		s := start(t, "-dbPath", t.TempDir())
		create(t, client(s.Address), "items", types.ScalarAttributeTypeB)
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store { return open(t, client(s.Address), "items") },
			Kill: func(t testing.TB) { s.Restart(t); await(t, s) },
		}
	}
	for what, kills := range map[string]func(*testing.T, func(testing.TB) castest.Rig){
		"items": castest.RunKilled, "leases": leasetest.RunKilled, "consumers": cassinktest.RunKilled,
	} {
		t.Run(what, func(t *testing.T) { t.Parallel(); kills(t, create) })
	}
}

func TestRealTheCommandReachesIt(t *testing.T) {
	s := start(t)
	c := client(s.Address)
	create(t, c, "items", types.ScalarAttributeTypeB)
	commandtest.Reaches(t, open(t, c, "items"), "dynamodb://items",
		"AWS_ENDPOINT_URL_DYNAMODB=http://"+s.Address, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=user", "AWS_SECRET_ACCESS_KEY=password")
}

func TestRealCommitRow(t *testing.T) { cassinktest.Measure(t, "DynamoDB Local", onTables(t)) }

func TestRealLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "DynamoDB",
		Number: "a counter in the value: it restarts if the key is deleted",
		Needs:  "no time-to-live on the table",
	}, onTables(t))
}

// theirs returns a function that writes an item with these attributes.
func theirs(admin *dynamodb.Client, table string, others map[string]types.AttributeValue) func(testing.TB, string) []byte {
	return func(t testing.TB, key string) []byte {
		item := map[string]types.AttributeValue{
			"scope": &types.AttributeValueMemberS{Value: "epochfence"}, "key": &types.AttributeValueMemberB{Value: []byte(key)},
		}
		maps.Copy(item, others)
		if _, err := admin.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: item}); err != nil {
			t.Fatal(err)
		}
		return nil
	}
}

// onTables returns a function that makes rigs of a table each.
func onTables(t *testing.T) func(t testing.TB) castest.Rig {
	s := start(t)
	admin := client(s.Address)
	var tables atomic.Int32
	return func(t testing.TB) castest.Rig {
		table := fmt.Sprintf("items-%d", tables.Add(1))
		create(t, admin, table, types.ScalarAttributeTypeB)
		return castest.Rig{
			Served: true,
			Open:   func(t testing.TB, via func(string) string) cas.Store { return open(t, client(via(s.Address)), table) },
			Empty: func(t testing.TB) {
				if _, err := admin.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
					t.Fatal(err)
				}
				create(t, admin, table, types.ScalarAttributeTypeB)
			},
			Backup: func(t testing.TB) func() { return backup(t, admin, table) },
			Foreign: map[string]func(testing.TB, string) []byte{
				"an item without a version": theirs(admin, table, map[string]types.AttributeValue{
					"value": &types.AttributeValueMemberB{Value: []byte("theirs")},
				}),
				"a value that is a string": theirs(admin, table, map[string]types.AttributeValue{
					"value": &types.AttributeValueMemberS{Value: "theirs"}, "version": &types.AttributeValueMemberS{Value: "7"},
				}),
				"a version that is a number": theirs(admin, table, map[string]types.AttributeValue{
					"value": &types.AttributeValueMemberB{Value: []byte("theirs")}, "version": &types.AttributeValueMemberN{Value: "7"},
				}),
				"an item of its keys alone": theirs(admin, table, nil),
			},
			Native: func(t testing.TB, key string) []byte {
				r, err := admin.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &table, Key: map[string]types.AttributeValue{
					"scope": &types.AttributeValueMemberS{Value: "epochfence"}, "key": &types.AttributeValueMemberB{Value: []byte(key)},
				}})
				if err != nil {
					t.Fatal(err)
				}
				return r.Item["value"].(*types.AttributeValueMemberB).Value
			},
		}
	}
}

// backup puts the items back as they are now.
func backup(t testing.TB, c *dynamodb.Client, table string) func() {
	t.Helper()
	saved, err := c.Scan(t.Context(), &dynamodb.ScanInput{TableName: &table})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := c.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
			t.Fatal(err)
		}
		create(t, c, table, types.ScalarAttributeTypeB)
		for _, item := range saved.Items {
			if _, err := c.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: item}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestRealATableWithOtherKeysIsRefusedWithTheCommand(t *testing.T) {
	c := client(start(t).Address)
	create(t, c, "other", types.ScalarAttributeTypeS)
	_, err := dynamostore.Open(t.Context(), c, dynamostore.Options{Table: "other"})
	if err == nil || !strings.Contains(err.Error(), "aws dynamodb create-table") || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("err = %v", err)
	}
	if _, err := dynamostore.Open(t.Context(), c, dynamostore.Options{Table: "none"}); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("err = %v", err)
	}
	create(t, c, "items", types.ScalarAttributeTypeB)
	s := open(t, c, "items")
	if _, err := c.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String("items")}); err != nil {
		t.Fatal(err)
	}
	create(t, c, "items", types.ScalarAttributeTypeS)
	if _, err := s.Facts(t.Context()); !errors.Is(err, cas.ErrUnsuitable) {
		t.Errorf("a table that was replaced: %v", err)
	}
}
