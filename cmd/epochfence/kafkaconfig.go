package main

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// This file turns librdkafka's settings for TLS and SASL into options of the client, and refuses
// those that it does not know.

// kafkaOptions reads --kafka and the file of --kafka-config, whose keys are librdkafka's.
func kafkaOptions(f flags) ([]kgo.Opt, error) {
	config := map[string]string{}
	if f.kafkaConfig != "" {
		var err error
		if config, err = properties(f.kafkaConfig); err != nil {
			return nil, fmt.Errorf("--kafka-config: %w", err)
		}
	}
	options, err := secured(config)
	if err != nil {
		return nil, fmt.Errorf("--kafka-config: %s: %w", f.kafkaConfig, err)
	}
	seeds := brokersIn(cmp.Or(f.kafka, config["bootstrap.servers"]))
	if len(seeds) == 0 {
		return nil, usage("which Kafka? Say it with --kafka, or bootstrap.servers in %s", f.kafkaConfig)
	}
	for _, seed := range seeds {
		if strings.Contains(seed, "@") { // not printed: it may have a password
			return nil, usage("--kafka: an address has a user: want HOST:PORT, and the user in --kafka-config")
		}
	}
	return append(options, kgo.SeedBrokers(seeds...)), nil
}

var kafkaKeys = []string{"bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
	"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}

func properties(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	found := map[string]string{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !ok || !slices.Contains(kafkaKeys, key) {
			return nil, fmt.Errorf("%s: line %d: want KEY=VALUE, with a key of %s", path, n, strings.Join(kafkaKeys, ", "))
		}
		found[key] = strings.TrimSpace(value)
	}
	return found, lines.Err()
}

func secured(c map[string]string) (options []kgo.Opt, err error) {
	protocol := strings.ToUpper(cmp.Or(c["security.protocol"], "PLAINTEXT"))
	switch protocol {
	case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
	default:
		return nil, fmt.Errorf("security.protocol is %q; want plaintext, ssl, sasl_plaintext or sasl_ssl", protocol)
	}
	if strings.HasSuffix(protocol, "SSL") {
		config, err := tlsConfig(c)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if strings.HasPrefix(protocol, "SASL") {
		m, err := mechanism(cmp.Or(c["sasl.mechanism"], c["sasl.mechanisms"]), c["sasl.username"], c["sasl.password"])
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(m))
	}
	return options, nil
}

func mechanism(name, user, pass string) (sasl.Mechanism, error) {
	switch strings.ToUpper(name) {
	case "PLAIN":
		return plain.Auth{User: user, Pass: pass}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: pass}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: pass}.AsSha512Mechanism(), nil
	default:
		return nil, fmt.Errorf("sasl.mechanism is %q; want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", name)
	}
}

func tlsConfig(c map[string]string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if path := c["ssl.ca.location"]; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ssl.ca.location holds no certificate")
		}
	}
	if path := c["ssl.certificate.location"]; path != "" {
		pair, err := tls.LoadX509KeyPair(path, cmp.Or(c["ssl.key.location"], path))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
