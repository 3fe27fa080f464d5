package natssource

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/tlstest"
)

// signer is a level of NATS's decentralised authentication: an operator, or an account.
type signer struct {
	t    *testing.T
	pair nkeys.KeyPair
	name string // the public key
}

func newSigner(t *testing.T, create func() (nkeys.KeyPair, error)) signer {
	t.Helper()
	pair, err := create()
	must(t, err)
	name, err := pair.PublicKey()
	must(t, err)
	return signer{t, pair, name}
}

func (s signer) sign(c jwt.Claims) string {
	s.t.Helper()
	token, err := c.Encode(s.pair)
	must(s.t, err)
	return token
}

// user returns the credentials of a user of the account, who may do that.
func (s signer) user(publish, subscribe []string) nats.Option {
	s.t.Helper()
	u := newSigner(s.t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(u.name)
	claims.Permissions.Pub.Allow.Add(publish...)
	claims.Permissions.Sub.Allow.Add(subscribe...)
	seed, err := u.pair.Seed()
	must(s.t, err)
	return nats.UserJWTAndSeed(s.sign(claims), string(seed))
}

// withOperator has the server trust an operator with one account, which is returned.
func withOperator(t *testing.T) (natstest.Configure, signer) {
	t.Helper()
	operator := newSigner(t, nkeys.CreateOperator)
	system, account := newSigner(t, nkeys.CreateAccount), newSigner(t, nkeys.CreateAccount)
	resolver := &server.MemAccResolver{}
	must(t, resolver.Store(system.name, operator.sign(jwt.NewAccountClaims(system.name))))
	claims := jwt.NewAccountClaims(account.name)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	must(t, resolver.Store(account.name, operator.sign(claims)))
	root := jwt.NewOperatorClaims(operator.name)
	root.SystemAccount = system.name
	return func(o *server.Options) {
		o.TrustedOperators, o.SystemAccount, o.AccountResolver = []*jwt.OperatorClaims{root}, system.name, resolver
	}, account
}

func withTLS(t *testing.T, c tlstest.Certificate) natstest.Configure {
	t.Helper()
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	must(t, err)
	return func(o *server.Options) {
		o.TLS, o.TLSConfig, o.TLSTimeout = true, &tls.Config{Certificates: []tls.Certificate{pair}}, 10
	}
}

// A server as it is in production: TLS, users with JWT, and no more permissions than the
// package documentation asks for. What is wrong with the client's side of it is said
// long before StartTimeout.
func TestASecuredServerIsReadWithTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	publish, subscribe := documentedPermissions(t)
	authority := tlstest.NewAuthority(t)
	operator, account := withOperator(t)
	s := natstest.Start(t, operator, withTLS(t, authority.Server()))
	lapsed := natstest.Start(t, withTLS(t, authority.Expired()))
	trust := func(a *tlstest.Authority) nats.Option { return nats.Secure(&tls.Config{RootCAs: a.Pool()}) }

	js := s.JetStream(t, trust(authority), account.user(nil, nil))
	must(t, second(js.CreateStream(inTime(t), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}})))
	must(t, second(js.Publish(inTime(t), "orders.0", []byte("x"))))
	from := func(on *natstest.Server, opts ...nats.Option) *Source {
		t.Helper()
		nc, err := nats.Connect(on.URL(), append(opts, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))...)
		must(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		must(t, err)
		source, err := New(Options{
			Group: "billing", JetStream: js, Streams: []Stream{{Name: "orders", Filters: []string{"orders.0"}}}, Bucket: "leases",
			LeaseTTL: 20 * time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		return source
	}

	ctx, cancel := context.WithCancel(inTime(t))
	read := ""
	must(t, from(s, trust(authority), account.user(publish, subscribe)).Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
		defer cancel()
		starts, err := tn.Starts(ctx, consumer.StartEarliest)
		if err != nil {
			t.Error(err)
			return
		}
		for b, err := range tn.Read(ctx, epoch.Fence{Origin: starts[0].Origin, Next: starts[0].Next.Offset, Mark: starts[0].Next.Mark}) {
			if err != nil {
				t.Error(err)
			}
			if len(b.Messages) > 0 {
				read = string(b.Messages[0].Value)
				return
			}
		}
	}))
	if read != "x" {
		t.Errorf("read %q, want x", read)
	}

	_, outsider := withOperator(t)
	for name, c := range map[string]struct {
		source *Source
		say    string
	}{
		"credentials of another account": {from(s, trust(authority), outsider.user(publish, subscribe)), "refuses the credentials"},
		"unknown authority":              {from(s, trust(tlstest.NewAuthority(t)), account.user(publish, subscribe)), "certificate authority"},
		"expired certificate":            {from(lapsed, trust(authority)), "expired"},
	} {
		began := time.Now()
		err := c.source.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
		took := time.Since(began)
		if err == nil || !strings.HasPrefix(err.Error(), "natssource: ") || !strings.Contains(err.Error(), c.say) || took > 15*time.Second {
			t.Errorf("%s: %v after %v, want one that says %q long before 30 s", name, err, took, c.say)
		}
		t.Logf("%s: %v: %v", name, took.Round(time.Millisecond), err)
	}
}
