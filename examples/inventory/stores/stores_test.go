package main

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/servers/etcdtest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

// The workers are this test binary.
func TestMain(m *testing.M) {
	show.Enter(theShow().Work)
	os.Exit(m.Run())
}

func TestInRedisTheFencedColumnIsExact(t *testing.T) {
	t.Parallel()
	program := servertest.Find(t, "Debian package redis-server", "redis-server", "valkey-server")
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(program, "--bind", "127.0.0.1", "--port", s.Port(), "--appendonly", "yes", "--save", "")
	})
	playsExact(t, "redis://"+s.Address+"/0", openRedis)
}

func TestInEtcdTheFencedColumnIsExact(t *testing.T) {
	t.Parallel()
	playsExact(t, "etcd://"+etcdtest.Start(t).Address, openEtcd)
}

func TestRealInDynamoDBTheFencedColumnIsExact(t *testing.T) {
	java := servertest.Jars(t, "EPOCHFENCE_DYNAMODB_LIBS")
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return java("com.amazonaws.services.dynamodbv2.local.main.ServerRunner", "-inMemory", "-disableTelemetry", "-port", s.Port())
	})
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": "http://" + s.Address, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "password",
	} {
		t.Setenv(name, value)
	}
	c, err := config.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = dynamodb.NewFromConfig(c).CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: aws.String("items"), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("scope"), AttributeType: types.ScalarAttributeTypeS}, {AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeB},
		},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("scope"), KeyType: types.KeyTypeHash}, {AttributeName: aws.String("key"), KeyType: types.KeyTypeRange}},
	})
	if err != nil {
		t.Fatal(err)
	}
	playsExact(t, "dynamodb://items", openDynamoDB)
}

// playsExact plays the show, and wants the baseline to be harmed, and nothing to be left.
func playsExact(t *testing.T, sink string, open func(context.Context, string) (cas.Store, func(), error)) {
	t.Helper()
	showtest.Exact(t, theShow(), "-sink", sink, "-messages", "6000")
	s, closer, err := open(t.Context(), sink)
	if err != nil {
		t.Fatal(err)
	}
	defer closer()
	for item, err := range s.List(t.Context(), "") {
		t.Errorf("%s is left, %v", item.Key, err)
	}
}

func TestAStoreThatIsNotThereIsSaidClearly(t *testing.T) {
	showtest.Refused(t, show.StatusNot, theShow, map[string]string{
		"-sink redis://127.0.0.1:1/0": "-sink: ",
		"-sink etcd://127.0.0.1:1":    "-sink: ",
	})
	showtest.Refused(t, show.StatusUsage, theShow, map[string]string{
		"-sink s3://bucket": "-sink: want one of nats (a server in this process), nats://HOST:PORT/BUCKET, redis://HOST:PORT/DB, etcd://HOST:PORT,…, dynamodb://TABLE",
	})
}
