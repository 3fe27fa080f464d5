package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

// The suite of each driver has seen its rows on the real server, see `make figures WHAT=tokens`.
func TestThePageOfStoresHasTheNumbersThatTheServersHaveShown(t *testing.T) {
	files, err := filepath.Glob("stores/*.json")
	if err != nil || len(files) != 10 {
		t.Fatalf("%q, %v", files, err)
	}
	table := "\n| server | number | a new holder | a deletion and a new holder | a restored backup | a failover that lost writes |\n|---|---|---|---|---|---|\n"
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s tokentest.Rows
		if err := json.Unmarshal(data, &s); err != nil || len(s.Rows) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for _, r := range s.Rows {
			table += fmt.Sprintf("| %s | `%s` | %s | %s | %s | %s |\n", s.Server, r.Number, shown(r.Write), shown(r.Deletion), shown(r.Backup), shown(r.Failover))
		}
	}
	isOnPage(t, "stores.md", "numbers", table+"\n", "make figures WHAT=tokens")
}

// systems are the servers of the drivers, as the pages name them.
var systems = map[string]string{
	"consulstore": "Consul", "dynamostore": "DynamoDB", "etcdstore": "etcd", "kubestore": "Kubernetes", "natsstore": "NATS",
	"pgstore": "PostgreSQL", "redisstore": "Redis", "s3store": "S3", "searchstore": "OpenSearch", "zkstore": "ZooKeeper",
}

// plays reports whether the tests of a driver call the suite of a role, which they do with a real server.
func plays(t *testing.T, driver, suite string) bool {
	t.Helper()
	files, err := filepath.Glob("../cas/" + driver + "/*_test.go")
	if driver == "etcdstore" {
		files, err = filepath.Glob("../internal/servers/etcdtest/*_test.go")
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("the tests of %s: %v", driver, err)
	}
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(code), suite+".Run(t, ") {
			return true
		}
	}
	return false
}

func TestTheRolesOfAStoreAreThoseWhoseSuitesItsDriverPlays(t *testing.T) {
	drivers, err := filepath.Glob("../cas/*store")
	if err != nil {
		t.Fatal(err)
	}
	table := "\n| driver | leases | effects, with `guard` | effects and positions, with `cassink` |\n|---|---|---|---|\n"
	for _, dir := range drivers {
		driver := filepath.Base(dir)
		if driver == "memstore" {
			continue
		}
		if systems[driver] == "" || !plays(t, driver, "castest") {
			t.Errorf("%s has no name, or does not play castest", driver)
		}
		table += "| `" + driver + "`"
		for _, suite := range []string{"leasetest", "guardtest", "cassinktest"} {
			table += " | " + map[bool]string{true: "yes", false: "no"}[plays(t, driver, suite)]
		}
		table += " |\n"
	}
	isOnPage(t, "stores.md", "roles", table+"\n", "make figures WHAT=tokens")
}

func shown(what string) string {
	if what == "repeats" {
		return "**repeats**"
	}
	return what
}
