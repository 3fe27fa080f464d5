package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestAStoresURLSaysEachPart(t *testing.T) {
	for text, want := range map[string]storeURL{
		"etcd://h":                             {scheme: "etcd", hosts: []string{"h"}},
		"etcd://a:2379,b:2379/stock/eu":        {scheme: "etcd", hosts: []string{"a:2379", "b:2379"}, path: "stock/eu"},
		"nats://[::1]:4222/B":                  {scheme: "nats", hosts: []string{"[::1]:4222"}, path: "B"},
		"s3://stock/items/?use_path_style=1":   {scheme: "s3", hosts: []string{"stock"}, path: "items/"},
		"zookeeper://anna:p%40ss@a,b/a%20root": {scheme: "zookeeper", hosts: []string{"a", "b"}, path: "a root"},
	} {
		got, err := parseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if strings.Contains(text, "@") && (got.user.Username() != "anna" || got.password() != "p@ss") {
			t.Errorf("%s: the user is %v", text, got.user)
		}
		if got.scheme != want.scheme || !reflect.DeepEqual(got.hosts, want.hosts) || got.path != want.path {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

func TestAStoreThatIsSaidWronglyIsAUsageError(t *testing.T) {
	for at, want := range map[string]string{
		"redis":                             "want a URL, which begins with one of consul://, dynamodb://, etcd://",
		"mysql://h/x":                       "mysql:// is none of consul://",
		"etcd:///stock":                     "a host is missing",
		"etcd://a,,b":                       "a host is missing",
		"etcd://an%zz@h":                    "the URL cannot be parsed",
		"etcd://h/%zz":                      "%zz",
		"etcd://h?prefix=stock":             `etcd:// has no parameter "prefix"`,
		"redis://h:6379/0?prefx=stock":      "prefx",
		"nats://h:4222":                     "name the bucket",
		"consul://a,b":                      "one host",
		"s3://stock?use_path_style=perhaps": "true or false",
		"postgres://h/%zz":                  "%zz",
	} {
		a := (&cli{t, map[string]string{"EPOCHFENCE_STORE": at}}).run("list", "--timeout", "5s")
		if a.code != exitUsage || !strings.Contains(a.errs, want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s", at, a.code, exitUsage, want, a.errs)
		}
	}
}

func TestTheSinkIsInADatabaseOrInAStore(t *testing.T) {
	const nats, sqlite = "nats://127.0.0.1:1/B", "file:/nowhere/sink.db"
	for _, c := range []struct {
		env  map[string]string
		args []string
		code int
		want string
	}{
		{map[string]string{"EPOCHFENCE_STORE": nats, "EPOCHFENCE_DATABASE": sqlite}, nil, exitUsage, "say one"},
		{nil, []string{"--store", nats, "--database", sqlite}, exitUsage, "say one"},
		{map[string]string{"EPOCHFENCE_STORE": nats, "DATABASE_URL": sqlite}, nil, exitError, "connect to NATS"},
		{map[string]string{"EPOCHFENCE_DATABASE": sqlite}, []string{"--store", nats}, exitError, "connect to NATS"},
		{map[string]string{"EPOCHFENCE_STORE": nats}, []string{"--database", sqlite}, exitError, "no such file"},
	} {
		a := (&cli{t, c.env}).run(append([]string{"list"}, c.args...)...)
		if a.code != c.code || !strings.Contains(a.errs, c.want) {
			t.Errorf("%v, %v: exit code %d, want %d and %q\n%s", c.env, c.args, a.code, c.code, c.want, a.errs)
		}
	}
}

func TestAPasswordOfAStoreIsNotShown(t *testing.T) {
	for _, at := range []string{"nats://anna:s3cret@127.0.0.1:1/B", "redis://anna:s3cret@127.0.0.1:1/0", "etcd://anna:s3cret@127.0.0.1:1", "zookeeper://anna:s3cret@127.0.0.1:1"} {
		a := (&cli{t, map[string]string{"EPOCHFENCE_STORE": at}}).does(exitError, "list", "--timeout", "300ms")
		if strings.Contains(a.out+a.errs, "s3cret") {
			t.Errorf("%s%s", a.out, a.errs)
		}
	}
}

func TestABucketIsNotCreatedByLookingAtIt(t *testing.T) {
	server := natstest.Start(t)
	js := server.JetStream(t)
	c := &cli{t, map[string]string{"EPOCHFENCE_STORE": server.URL() + "/stcok"}}
	tells(t, c.does(exitError, "list").errs, `there is no bucket "stcok"`)
	if _, err := js.KeyValue(t.Context(), "stcok"); err == nil {
		t.Error("there is one now")
	}
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "history", History: 5})
	must(t, err)
	c.env["EPOCHFENCE_STORE"] = server.URL() + "/history"
	tells(t, c.does(exitError, "list").errs, "nats stream edit")
}

func TestTheStoreInPostgreSQLIsOperated(t *testing.T) {
	url := pgtest.Start(t).URL
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, pgsink.Migrate(t.Context(), pool, pgsink.Options{Schema: "stock"}))
	c := &cli{t, map[string]string{"EPOCHFENCE_STORE": url + "&schema=stock"}}
	c.does(exitOK, "drill", "--execute")
	tells(t, c.does(exitOK, "list").out, drillPartition.String())
	c.env["EPOCHFENCE_STORE"] = url
	tells(t, c.does(exitError, "list", "--timeout", "1s").errs, "pgsink.Migrate")
}

// A newer version has written one fence.
func TestAFenceThatCannotBeReadIsShownBesideTheOthers(t *testing.T) {
	server := natstest.Start(t)
	items, err := natsstore.Open(t.Context(), server.JetStream(t), natsstore.Options{Bucket: "effects"})
	must(t, err)
	sink, err := cassink.Open(t.Context(), items, cassink.Options{})
	must(t, err)
	start := epoch.Start{Origin: epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "log", Source: "source"}}
	must(t, sink.Seed(t.Context(), []epoch.Start{start}))
	_, err = items.Swap(t.Context(), cas.Item{Key: "epochfence/fence/billing/orders/1"}, []byte(`{"v":2}`), nil)
	must(t, err)
	c := &cli{t, map[string]string{"EPOCHFENCE_STORE": server.URL() + "/effects"}}
	tells(t, c.does(exitOK, "list").out, "billing/orders/0  unclaimed", "billing/orders/1  unreadable")
	tells(t, c.does(exitOK, "describe").out, "billing/orders/1: ", "newer version; update this process")
	tells(t, c.does(exitTrouble, "check").out, "newer version")
	tells(t, c.does(exitError, "pause", "billing/orders/1", "--reason", "why", "--execute").errs, "newer version")
}

func TestWhatIsForDatabasesIsRefusedForAStore(t *testing.T) {
	c := &cli{t, inStore(t, none).variables()}
	tells(t, c.does(exitUsage, "migrate", "up").errs, "pgsink.Migrate creates those of pgstore")
	tells(t, c.does(exitUsage, "grants", "--role", "anna", "--as", "reader").errs, "its own tools")
	tells(t, c.does(exitOK, "doctor").out, "nats, where the sink's keys begin with epochfence/", "0 partitions")
}
