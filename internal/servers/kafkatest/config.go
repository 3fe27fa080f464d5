package kafkatest

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/internal/servers/freeport"
)

// Config changes a broker's defaults: a single node, no automatic topics, no rebalance delay, short
// sessions allowed, KIP-848 groups with a session of 6 s and a heartbeat every 300 ms, small
// buffers.
type Config struct {
	// Properties are added to server.properties and override the defaults.
	Properties map[string]string

	// Users adds a listener, [Broker.SASLAddr], where these users log in with SASL/PLAIN and their
	// passwords.
	Users map[string]string

	// Keystore is a PEM file with the key and the certificate of that listener, which then uses
	// TLS. The broker reads it at each start.
	Keystore string

	// ACLs makes the broker check permissions. Clients of [Broker.Addr] may do everything; Users
	// need an ACL.
	ACLs bool
}

func (c Config) serverProperties(dataDir string, client, controller, sasl string) string {
	listeners, protocols := "PLAINTEXT://"+client, "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
	if sasl != "" {
		listeners += ",SASL://" + sasl
		protocols += ",SASL:SASL_PLAINTEXT"
	}
	p := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          "1",
		"controller.quorum.voters":                         "1@" + controller,
		"listeners":                                        listeners + ",CONTROLLER://" + controller,
		"advertised.listeners":                             listeners,
		"controller.listener.names":                        "CONTROLLER",
		"listener.security.protocol.map":                   protocols,
		"log.dirs":                                         dataDir,
		"auto.create.topics.enable":                        "false",
		"group.min.session.timeout.ms":                     "500",
		"group.consumer.min.session.timeout.ms":            "500",
		"group.consumer.session.timeout.ms":                "6000",
		"group.consumer.min.heartbeat.interval.ms":         "100",
		"group.consumer.heartbeat.interval.ms":             "300",
		"group.initial.rebalance.delay.ms":                 "0",
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"broker.session.timeout.ms":                        "3000", // a restart waits until a killed broker's registration expires
		"broker.heartbeat.interval.ms":                     "500",
		"log.cleaner.dedupe.buffer.size":                   "4194304", // Kafka's default is 128 MiB
	}
	if sasl != "" {
		var users strings.Builder
		for _, user := range slices.Sorted(maps.Keys(c.Users)) {
			fmt.Fprintf(&users, " user_%s=%q", user, c.Users[user])
		}
		p["sasl.enabled.mechanisms"] = "PLAIN"
		if c.Keystore != "" {
			p["listener.security.protocol.map"] = strings.Replace(protocols, "SASL_PLAINTEXT", "SASL_SSL", 1)
			p["listener.name.sasl.ssl.keystore.type"] = "PEM"
			p["listener.name.sasl.ssl.keystore.location"] = c.Keystore
		}
		p["listener.name.sasl.plain.sasl.jaas.config"] =
			"org.apache.kafka.common.security.plain.PlainLoginModule required" + users.String() + ";"
	}
	if c.ACLs {
		p["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
		p["super.users"] = "User:ANONYMOUS"
	}
	maps.Copy(p, c.Properties)

	var file strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&file, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return file.String()
}

// newClusterID returns a random ID in Kafka's form: 16 bytes in URL-safe base64. It does not begin
// with a hyphen, because the command that takes it would read an option.
func newClusterID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}

func freeAddrs(n int) ([]string, error) {
	ports, err := freeport.Take(n)
	if err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	addrs := make([]string, n)
	for i, port := range ports {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs, nil
}
