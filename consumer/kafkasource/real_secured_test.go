package kafkasource_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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
	"github.com/epochfence/epochfence/internal/servers/tlstest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A cluster as it is in production: SASL_SSL, and no more permissions than the package
// documentation asks for. What is wrong with the client's side of it is said long before
// StartTimeout.
func TestRealSecuredClusterIsReadWithTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	authority := tlstest.NewAuthority(t)
	keystore := filepath.Join(t.TempDir(), "broker.pem")
	present := func(c tlstest.Certificate) {
		t.Helper()
		if err := os.WriteFile(keystore, bytes.Join([][]byte{c.Key, c.Cert}, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	present(authority.Server())
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": "right"}, Keystore: keystore, ACLs: true})
	h := newRealHistory(t, b.Addr, 1)
	h.send(0, 3)
	h.allow(kadm.NewACLs().Topics(h.topic).Operations(kmsg.ACLOperationRead))
	h.allow(kadm.NewACLs().Groups(h.group).Operations(kmsg.ACLOperationRead))
	as := func(password string, from *x509.CertPool) []kgo.Opt {
		return []kgo.Opt{
			kgo.SeedBrokers(b.SASLAddr), kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism()),
			kgo.Dialer((&tls.Dialer{Config: &tls.Config{RootCAs: from}}).DialContext),
		}
	}
	w := h.start("alice", as("right", authority.Pool())...)
	h.awaitApplied()
	w.stop()
	h.wantExactlyOnce()

	refused := func(name string, client []kgo.Opt, is func(error) bool, say string) {
		t.Helper()
		s, err := kafkasource.New(kafkasource.Options{
			Group: h.group, Topics: []string{h.topic}, Client: client, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // half of StartTimeout
		defer cancel()
		began := time.Now()
		err = consumer.Run(ctx, s, memsink.New(), consumer.Each((&worker{}).handle), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !is(err) || !strings.Contains(err.Error(), say) || !strings.Contains(err.Error(), b.SASLAddr) {
			t.Errorf("%s: %v after %v, want one that says %q and where", name, err, time.Since(began), say)
		}
		t.Logf("%s: %v: %v", name, time.Since(began).Round(time.Millisecond), err)
	}
	isTLS := func(err error) bool { var e *tls.CertificateVerificationError; return errors.As(err, &e) }
	refused("wrong password", as("wrong", authority.Pool()), func(err error) bool { return errors.Is(err, kerr.SaslAuthenticationFailed) }, "refuses the credentials")
	refused("unknown authority", as("right", tlstest.NewAuthority(t).Pool()), isTLS, "certificate authority")
	present(authority.Expired())
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("expired certificate", as("right", authority.Pool()), isTLS, "expired")
}
