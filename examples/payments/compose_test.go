package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

const composeFile = "../../compose/nats.yaml"

// There is no Docker where the tests run; what can be checked without is.
func TestTheClusterOfComposeIsTheServerOfTheTestsAndItsConfigurationIsOne(t *testing.T) {
	b, err := os.ReadFile(composeFile)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	if want := "image: nats:" + server.VERSION + "-alpine\n"; !strings.Contains(page, want) {
		t.Errorf("there is no %q", want)
	}
	for _, ports := range regexp.MustCompile(`ports: \[(.*)\]`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(ports[1], `"127.0.0.1:`) {
			t.Errorf("%s can be reached from elsewhere", ports[1])
		}
	}

	_, content, ok := strings.Cut(page, "    content: |\n")
	if !ok {
		t.Fatal("there is no configuration")
	}
	content, _, _ = strings.Cut(content, "\nvolumes:")
	path := filepath.Join(t.TempDir(), "node.conf")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !o.JetStream || o.StoreDir != "/data" || o.Port != 4222 || o.HTTPPort != 8222 || len(o.Routes) != 3 || !o.Cluster.NoAdvertise {
		t.Errorf("it is read as JetStream %v in %s, ports %d and %d, %d routes", o.JetStream, o.StoreDir, o.Port, o.HTTPPort, len(o.Routes))
	}
	for _, r := range o.Routes {
		if host, port, _ := strings.Cut(r.Host, ":"); !strings.Contains(page, "\n  "+host+":\n") || port != "6222" {
			t.Errorf("there is no service %s, or it does not listen there", r.Host)
		}
	}
}
