package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/tlstest"
)

// A cluster that asks for TLS and a login is reached with the file's settings, and not without.
func TestKafkaWithTLSAndALogin(t *testing.T) {
	ca := tlstest.NewAuthority(t)
	server := ca.Server()
	pair, err := tls.X509KeyPair(server.Cert, server.Key)
	must(t, err)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-256", "anna", "s3cret"), kfake.SeedTopics(1, "orders"))
	must(t, err)
	t.Cleanup(cluster.Close)
	file := func(lines ...string) flags {
		path := filepath.Join(t.TempDir(), "kafka.properties")
		must(t, os.WriteFile(path, []byte("# for the test\n\n"+strings.Join(lines, "\n")), 0o600))
		return flags{kafkaConfig: path, timeout: inTime}
	}
	ask := func(f flags) error {
		f.timeout = inTime / 5
		k, err := openKafka(f)
		if err != nil {
			return err
		}
		defer k.close()
		return k.extents(t.Context(), []epoch.Fence{{Origin: epoch.Origin{Partition: partition(0)}}})[0].err
	}
	seeds := "bootstrap.servers = " + cluster.ListenAddrs()[0]
	good := []string{seeds, "security.protocol=sasl_ssl", "sasl.mechanism=SCRAM-SHA-256", "sasl.username=anna", "sasl.password=s3cret", "ssl.ca.location=" + ca.File}
	if err := ask(file(good...)); err != nil {
		t.Errorf("with all that it asks for: %v", err)
	}
	for name, lines := range map[string][]string{
		"without a login":      {seeds, "security.protocol=ssl", "ssl.ca.location=" + ca.File},
		"another password":     append(append([]string{}, good...), "sasl.password=other"),
		"another authority":    {seeds, "security.protocol=ssl"},
		"no such protocol":     {seeds, "security.protocol=carrier_pigeon"},
		"no such mechanism":    {seeds, "security.protocol=sasl_ssl", "sasl.mechanism=GSSAPI"},
		"a key with a typo":    {seeds, "sasl.pasword=s3cret"},
		"no file of that name": {seeds, "security.protocol=ssl", "ssl.ca.location=/nowhere"},
	} {
		if err := ask(file(lines...)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
