package kafkasource_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// What cannot work says so in good time, and names what it is about.
func TestRealRefusalsAreClearErrors(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": "right"}, ACLs: true})
	h := newRealHistory(t, b.Addr, 1)
	h.send(0, 3)
	as := func(password string) []kgo.Opt {
		return []kgo.Opt{kgo.SeedBrokers(b.SASLAddr), kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism())}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close() // takes connections and never answers

	for _, c := range []struct {
		name   string
		topic  string
		opts   []kgo.Opt
		allow  *kadm.ACLBuilder // on top of what was allowed before
		within time.Duration    // of starting, where it waits for all of it
		is     error
		naming string
	}{
		{name: "nobody answers", topic: h.topic, opts: []kgo.Opt{kgo.SeedBrokers(nobody.Addr().String())}, within: 3 * time.Second, naming: nobody.Addr().String()},
		{name: "wrong password", topic: h.topic, opts: as("wrong"), is: kerr.SaslAuthenticationFailed, naming: b.SASLAddr},
		{name: "no login", topic: h.topic, opts: []kgo.Opt{kgo.SeedBrokers(b.SASLAddr)}, naming: b.SASLAddr},
		{name: "missing topic", topic: h.topic + "-missing", opts: []kgo.Opt{kgo.SeedBrokers(b.Addr)}, is: kerr.UnknownTopicOrPartition, naming: h.topic + "-missing"},
		{name: "no permission on the topic", topic: h.topic, opts: as("right"), is: kerr.TopicAuthorizationFailed, naming: h.topic},
		{
			name: "no permission on the group", topic: h.topic, opts: as("right"), is: kerr.GroupAuthorizationFailed, naming: h.group,
			allow: kadm.NewACLs().Topics(h.topic).Operations(kmsg.ACLOperationRead, kmsg.ACLOperationDescribe),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.allow(c.allow)
			err := runOnce(t, h.group, c.topic, c.opts, cmp.Or(c.within, 30*time.Second))
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.naming) {
				t.Errorf("Run returned %v, want %v, naming %s", err, c.is, c.naming)
			}
		})
	}

	h.allow(kadm.NewACLs().Groups(h.group).Operations(kmsg.ACLOperationRead))
	w := h.start("alice", as("right")...)
	h.awaitApplied()
	w.stop()
	h.wantExactlyOnce()
}

func (h *realHistory) allow(acl *kadm.ACLBuilder) {
	h.Helper()
	if acl == nil {
		return
	}
	acl = acl.Allow("User:alice").AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral)
	if _, err := h.admin.CreateACLs(h.Context(), acl); err != nil {
		h.Fatal(err)
	}
	h.poll("the broker to know what alice may do", func() bool {
		known, err := h.admin.DescribeACLs(h.Context(), acl)
		return err == nil && !slices.ContainsFunc(known, func(r kadm.DescribeACLsResult) bool { return len(r.Described) == 0 })
	})
}

// runOnce returns what Run says when it cannot start.
func runOnce(t *testing.T, group, topic string, opts []kgo.Opt, within time.Duration) error {
	t.Helper()
	s, err := kafkasource.New(kafkasource.Options{
		Group: group, Topics: []string{topic}, Client: opts,
		StartTimeout: within, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = consumer.Run(ctx, s, memsink.New(), consumer.Each((&worker{}).handle), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if ctx.Err() != nil {
		t.Errorf("Run took %v to say %v", patience, err)
	}
	return err
}
