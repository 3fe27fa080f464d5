package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
)

// This file asks Kafka where logs begin and end, what a group has committed, and which members it has,
// classic or KIP-848. It turns librdkafka's settings for TLS and SASL into options of the client, and
// refuses those that it does not know. moveover.go decides which members are old consumers.

type kafkaBroker struct {
	client  *kadm.Client
	timeout time.Duration
}

func openKafka(f flags) (*kafkaBroker, error) {
	options, err := kafkaOptions(f)
	if err != nil {
		return nil, err
	}
	c, err := kgo.NewClient(append(options, kgo.ClientID("epochfence"), kgo.RetryTimeout(f.timeout), kgo.DialTimeout(min(f.timeout, 10*time.Second)))...)
	if err != nil {
		return nil, usage("--kafka: %w", err)
	}
	return &kafkaBroker{kadm.NewClient(c), f.timeout}, nil
}

func (k *kafkaBroker) close() { k.client.Close() }

func (k *kafkaBroker) extents(ctx context.Context, fences []epoch.Fence) []extent {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	topics := topicsOf(fences)
	all := make([]extent, len(fences))
	fail := func(err error) []extent {
		for i := range all {
			all[i].err = fmt.Errorf("kafka: %w", err)
		}
		return all
	}
	meta, err := k.client.Metadata(ctx, topics...)
	if err != nil {
		return fail(err)
	}
	begins, err := k.client.ListStartOffsets(ctx, topics...)
	if err != nil {
		return fail(err)
	}
	ends, err := k.client.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return fail(err)
	}
	written, err := k.client.ListEndOffsets(ctx, topics...)
	if err != nil {
		return fail(err)
	}
	groups, unread := map[string]kadm.OffsetResponses{}, map[string]error{}
	for i, f := range fences {
		all[i] = kafkaExtent(f, meta, begins, ends, written)
		if all[i].err != nil {
			continue
		}
		if _, asked := groups[f.Partition.Group]; !asked { // an error counts as nothing committed, because the privilege may be missing
			groups[f.Partition.Group], err = k.client.FetchOffsets(ctx, f.Partition.Group)
			if !errors.Is(err, kerr.GroupIDNotFound) { // which has committed nothing
				unread[f.Partition.Group] = err
			}
		}
		all[i].unread = unread[f.Partition.Group]
		at, ok := groups[f.Partition.Group].Lookup(f.Partition.Topic, f.Partition.Number)
		if all[i].unread = cmp.Or(all[i].unread, at.Err); !ok || at.Err != nil {
			continue
		}
		all[i].published = publishedAs(at)
		if f.Epoch == 0 && at.At > 0 {
			all[i].committed = epoch.Offset(at.At)
			all[i].lag = max(int64(all[i].end)-max(at.At, int64(all[i].begin)), 0)
		}
	}
	k.nameOpen(ctx, fences, all)
	return all
}

// nameOpen finds the open transactions in front of which logs end. What Kafka does not say, because a
// privilege is missing, stays unknown.
func (k *kafkaBroker) nameOpen(ctx context.Context, fences []epoch.Fence, all []extent) {
	held := kadm.TopicsSet{}
	for i, f := range fences {
		if n := int64(all[i].written - all[i].end); all[i].err == nil && n > 0 {
			all[i].open = &openTransaction{Offsets: n}
			held.Add(f.Partition.Topic, f.Partition.Number)
		}
	}
	if len(held) == 0 {
		return
	}
	producers, _ := k.client.DescribeProducers(ctx, held)
	var ids []int64
	producers.EachProducer(func(p kadm.DescribedProducer) {
		if p.CurrentTxnStartOffset >= 0 {
			ids = append(ids, p.ProducerID)
		}
	})
	if len(ids) == 0 { // without ids, Kafka would list all transactions
		return
	}
	listed, _ := k.client.ListTransactions(ctx, ids, nil)
	if len(listed) == 0 {
		return
	}
	described, _ := k.client.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	for i, f := range fences {
		if all[i].open == nil {
			continue
		}
		for _, t := range described.Sorted() {
			if !t.Topics.Lookup(f.Partition.Topic, f.Partition.Number) {
				continue
			}
			all[i].open.IDs = append(all[i].open.IDs, t.TxnID)
			if began := time.UnixMilli(t.StartTimestamp).UTC(); all[i].open.Since == nil || began.Before(*all[i].open.Since) {
				all[i].open.Since = &began
			}
		}
	}
}

// publishedAs reads the metadata that kafkasource commits with a position.
func publishedAs(at kadm.OffsetResponse) *published {
	p := published{next: epoch.Offset(at.At)}
	var claim string
	if _, err := fmt.Sscanf(at.Metadata, "epochfence epoch=%d claim=%s", &p.epoch, &claim); err != nil {
		return nil
	}
	var err error
	if p.claim, err = epoch.ParseClaimID(claim); err != nil {
		return nil
	}
	return &p
}

func kafkaExtent(f epoch.Fence, meta kadm.Metadata, begins, ends, written kadm.ListedOffsets) extent {
	p := f.Partition
	topic := meta.Topics[p.Topic]
	if topic.Err != nil {
		return extent{err: fmt.Errorf("kafka: topic %q: %w", p.Topic, topic.Err)}
	}
	begin, there := begins.Lookup(p.Topic, p.Number)
	end, still := ends.Lookup(p.Topic, p.Number)
	last, yet := written.Lookup(p.Topic, p.Number)
	if !there || !still || !yet {
		return extent{err: fmt.Errorf("kafka: topic %q has no partition %d", p.Topic, p.Number)}
	}
	if err := cmp.Or(begin.Err, end.Err, last.Err); err != nil {
		return extent{err: fmt.Errorf("kafka: %s/%d: %w", p.Topic, p.Number, err)}
	}
	return extent{
		log:    kafkaPrefix + meta.Cluster + "/" + base64.RawURLEncoding.EncodeToString(topic.ID[:]),
		source: fmt.Sprintf("kafka cluster %s group %q", meta.Cluster, p.Group),
		begin:  epoch.Offset(begin.Offset), end: epoch.Offset(end.Offset),
		written: epoch.Offset(last.Offset),
		lag:     max(end.Offset-max(int64(f.Next), begin.Offset), 0),
	}
}

func topicsOf(fences []epoch.Fence) (topics []string) {
	for _, f := range fences {
		topics = append(topics, f.Partition.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

func (k *kafkaBroker) at(ctx context.Context, f epoch.Fence, t time.Time) (epoch.Offset, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	found, err := k.client.ListOffsetsAfterMilli(ctx, t.UnixMilli(), f.Partition.Topic)
	if err == nil {
		err = found.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: the first offset of %s after %s: %w", f.Partition, stamp(t), err)
	}
	o, there := found.Lookup(f.Partition.Topic, f.Partition.Number)
	if !there {
		return 0, fmt.Errorf("kafka: topic %q has no partition %d", f.Partition.Topic, f.Partition.Number)
	}
	return epoch.Offset(o.Offset), nil
}

func (k *kafkaBroker) unfenced(ctx context.Context, group, topic string, fences []epoch.Fence) ([]epoch.Partition, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	meta, err := k.client.Metadata(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	var missing []epoch.Partition
	for _, n := range meta.Topics[topic].Partitions.Numbers() {
		p := epoch.Partition{Group: group, Topic: topic, Number: n}
		if !slices.ContainsFunc(fences, func(f epoch.Fence) bool { return f.Partition == p }) {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

func brokersIn(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func (k *kafkaBroker) groupOf(ctx context.Context, group string) (m membership, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	members, settled, err := kafkasource.Members(ctx, k.client, group)
	if err != nil {
		return m, fmt.Errorf("kafka: the members of group %q: %w", group, err)
	}
	m.members, m.rebalancing = members, !settled
	offsets, err := k.client.FetchOffsets(ctx, group)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // GroupIDNotFound: the group has expired or was deleted
		return m, fmt.Errorf("kafka: what group %q has committed: %w", group, err)
	}
	for topic, of := range offsets {
		for n, o := range of {
			if o.At >= 0 {
				m.committed = append(m.committed, epoch.Partition{Group: group, Topic: topic, Number: n})
			}
		}
	}
	return m, nil
}

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
