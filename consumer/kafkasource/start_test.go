package kafkasource

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/consumer"
)

// wantRefusal runs a source that cannot start.
func (r *rig) wantRefusal(s *Source, within time.Duration, words ...string) {
	r.Helper()
	began := time.Now()
	err := s.Run(r.Context(), func(error) {}, func(_ context.Context, t consumer.Tenure) { r.Errorf("granted %v", t.Origin()) })
	if err == nil {
		r.Fatal("Run returned nil")
	}
	r.Log(err)
	if took := time.Since(began); took > within {
		r.Errorf("it took %v, want up to %v", took, within)
	}
	for _, w := range append(words, "kafkasource: ") {
		if !strings.Contains(err.Error(), w) {
			r.Errorf("the error does not say %q", w)
		}
	}
}

func TestABrokerThatCannotBeReachedIsAClearErrorWithinTheBound(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		s := r.source(with(kgo.SeedBrokers("127.0.0.1:7777")), func(o *Options) { o.StartTimeout = 10 * time.Second })
		r.wantRefusal(s, 10*time.Second, "127.0.0.1:7777", "10s", "no listener on port 7777")
	})
}

func TestABrokerThatIsWaitedForIsNamedInTheLogSoon(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		var said bytes.Buffer
		s := r.source(with(kgo.SeedBrokers("127.0.0.1:7777")), func(o *Options) {
			o.StartTimeout, o.Logger = 10*time.Second, slog.New(slog.NewTextHandler(&said, nil))
		})
		r.wantRefusal(s, 10*time.Second, "within 10s")
		if lines := strings.Count(said.String(), "127.0.0.1:7777"); lines != 1 || !strings.Contains(said.String(), "for=1s of=10s") || !strings.Contains(said.String(), "no listener") {
			r.Errorf("%d lines, want one after a second, with the error:\n%s", lines, &said)
		}
	})
}

func TestABrokerThatDoesNotAnswerIsAClearErrorWithinTheBound(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		l := r.link()
		l.freeze()
		r.wantRefusal(r.source(with(kgo.Dialer(l.dial))), 30*time.Second, "no broker", "30s")
	})
}

func TestRunThatIsEndedWhileItTriesToReachTheClusterReturnsNil(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		run := r.run(r.source(with(kgo.SeedBrokers("127.0.0.1:7777"))), nil)
		<-time.After(3 * time.Second)
		began := time.Now()
		if err := run.stop(); err != nil || time.Since(began) > time.Second {
			r.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestABrokerThatComesUpLateIsWaitedFor(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.produce(0, 5)
		l := r.link()
		l.freeze()
		r.run(r.source(with(kgo.Dialer(l.dial))), (&worker{sink: r.sink}).own)
		<-time.After(12 * time.Second)
		l.thaw()
		r.until("applied", func() bool { return r.sink.exactly(part(0), 5) })
	})
}

func TestWrongCredentialsAreAClearErrorAtOnce(t *testing.T) {
	virtually(t, 0, func(r *rig) {
		wrong := with(kgo.SASL(plain.Auth{User: "admin", Pass: "wrong"}.AsMechanism()))
		r.wantRefusal(r.source(wrong), 4*time.Second, "closes the connection", "credentials") // as kfake does
		r.cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			resp := kreq.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return resp, nil, true
		})
		r.wantRefusal(r.source(wrong), time.Second, "refuses the credentials") // as Kafka does
	}, kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "right"), kfake.SeedTopics(1))
}

func TestMissingCredentialsAreAClearErrorSoon(t *testing.T) {
	virtually(t, 0, func(r *rig) {
		r.wantRefusal(r.source(), 4*time.Second, "SASL")
	}, kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "right"), kfake.SeedTopics(1))
}

func TestAMissingTopicIsAClearErrorSoon(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		s := r.source(func(o *Options) { o.Topics = []string{testTopic, "nowhere"} })
		r.wantRefusal(s, 6*time.Second, `topic "nowhere"`, "create it first")
	})
}

func TestRefusalsAtStartAreClearErrorsAtOnce(t *testing.T) {
	for _, c := range []struct {
		key  kmsg.Key
		top  bool
		err  *kerr.Error
		opts []kgo.Opt
		say  []string
	}{
		{kmsg.Metadata, false, kerr.TopicAuthorizationFailed, nil, []string{`topic "orders"`, "may not describe"}},
		{kmsg.FindCoordinator, false, kerr.GroupAuthorizationFailed, nil, []string{`group "billing"`, "may not use it"}},
		{kmsg.JoinGroup, true, kerr.GroupAuthorizationFailed, nil, []string{`group "billing"`, "GROUP_AUTHORIZATION_FAILED"}},
		{kmsg.JoinGroup, true, kerr.InvalidSessionTimeout, nil, []string{`group "billing"`, "INVALID_SESSION_TIMEOUT", "set kgo.SessionTimeout"}},
		{kmsg.JoinGroup, true, kerr.InconsistentGroupProtocol, nil, []string{`group "billing"`, "INCONSISTENT_GROUP_PROTOCOL", "set kgo.Balancers"}},
		{kmsg.ConsumerGroupHeartbeat, true, kerr.UnsupportedAssignor, protocols[2].opts, []string{`group "billing"`, "set kgo.Balancers"}},
		{kmsg.JoinGroup, true, kerr.GroupMaxSizeReached, nil, []string{`group "billing"`, "GROUP_MAX_SIZE_REACHED"}},
		{kmsg.ConsumerGroupHeartbeat, true, kerr.GroupAuthorizationFailed, protocols[2].opts, []string{`group "billing"`, "GROUP_AUTHORIZATION_FAILED"}},
	} {
		t.Run(c.key.Name()+" "+c.err.Message, func(t *testing.T) {
			virtually(t, 1, func(r *rig) {
				r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, TopLevel: c.top, Err: c.err, Count: -1})
				r.wantRefusal(r.source(with(c.opts...)), 2*time.Second, c.say...)
			})
		})
	}
}

func TestAGroupWithoutACoordinatorIsAClearErrorWithinTheBound(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: -1})
		r.wantRefusal(r.source(), 30*time.Second, `group "billing"`, "no coordinator")
	})
}

func TestABrokerWithoutTopicOrClusterIDsIsAClearError(t *testing.T) {
	virtually(t, 1, func(r *rig) {
		r.wantRefusal(r.source(), time.Second, "topic id", "Kafka 3.1")
	}, kfake.MaxVersions(kversion.V2_7_0()))
	virtually(t, 1, func(r *rig) {
		r.produce(0, 1)
		_, one, _ := r.hold()
		_, err := r.readUntil(one, r.fence(one, 0), 1)
		if err == nil || !strings.Contains(err.Error(), "Kafka 3.1") {
			r.Errorf("a broker that knows topic ids and does not fetch by them: %v", err)
		}
	}, kfake.MaxVersions(kversion.V3_0_0()))
	virtually(t, 1, func(r *rig) {
		r.cluster.ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			resp := kreq.ResponseKind().(*kmsg.MetadataResponse)
			b := kmsg.NewMetadataResponseBroker()
			b.Host, b.Port = "127.0.0.1", 9001
			resp.Brokers = append(resp.Brokers, b)
			return resp, nil, true
		})
		r.wantRefusal(r.source(), time.Second, "cluster's id")
	})
}

func TestTLSThatDoesNotFitIsAClearErrorSoon(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	cert, pool := certificate(t)
	server := &tls.Config{Certificates: []tls.Certificate{cert}}
	secure := kfake.MustCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.SeedTopics(1, testTopic))
	t.Cleanup(secure.Close)
	plain := hangsUp(t)
	for _, c := range []struct {
		name string
		opts []kgo.Opt
		say  string
	}{
		{"a certificate nobody vouches for", []kgo.Opt{kgo.SeedBrokers(secure.ListenAddrs()...), kgo.DialTLSConfig(&tls.Config{})}, "TLS"},
		{"a certificate of another host", []kgo.Opt{kgo.SeedBrokers(secure.ListenAddrs()...), kgo.DialTLSConfig(&tls.Config{RootCAs: pool, ServerName: "elsewhere"})}, "TLS"},
		{"plain client, TLS broker", []kgo.Opt{kgo.SeedBrokers(secure.ListenAddrs()...)}, "TLS"},
		{"TLS client, plain broker", []kgo.Opt{kgo.SeedBrokers(plain), kgo.DialTLSConfig(&tls.Config{RootCAs: pool})}, "TLS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := New(Options{Group: testGroup, Topics: []string{testTopic}, Client: c.opts, StartTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			err = s.Run(ctx, func(error) {}, nil)
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v, want it to speak of %s", err, c.say)
			}
			t.Log(time.Since(began).Round(time.Millisecond), err)
		})
	}
	t.Run("TLS that fits", func(t *testing.T) {
		s, err := New(Options{Group: testGroup, Topics: []string{testTopic}, Logger: slog.New(slog.DiscardHandler), Client: []kgo.Opt{
			kgo.SeedBrokers(secure.ListenAddrs()...), kgo.DialTLSConfig(&tls.Config{RootCAs: pool}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := s.Run(ctx, func(error) {}, func(context.Context, consumer.Tenure) { cancel() }); err != nil || ctx.Err() == context.DeadlineExceeded {
			t.Error(err, ctx.Err())
		}
	})
}

// hangsUp is a server that closes a connection at the first word, as a broker
// does that hears TLS and does not speak it.
func hangsUp(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		}
	}()
	return l.Addr().String()
}

// certificate makes one for 127.0.0.1 that only pool vouches for.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kfake"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestAClusterWithTheSameGroupAndTopicIsAnotherLogAndAnotherIssuer(t *testing.T) {
	id := [16]byte{1}
	one := (&Source{cluster: "one", set: settings{Options: Options{Group: testGroup}}}).origin(topicPartition{testTopic, 0}, id)
	two := (&Source{cluster: "two", set: settings{Options: Options{Group: testGroup}}}).origin(topicPartition{testTopic, 0}, id)
	if one.Log == two.Log || one.Source == two.Source {
		t.Errorf("%+v and %+v", one, two)
	}
	if again := (&Source{cluster: "one", set: settings{Options: Options{Group: testGroup}}}).origin(topicPartition{testTopic, 0}, [16]byte{2}); again.Log == one.Log || again.Source != one.Source {
		t.Errorf("%+v and %+v", one, again)
	}
}
