package kafkasource

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/proxy"
)

func TestABrokerThatIsFarAwayIsReachedAndItsPartitionsAreClaimedAtOnce(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{"classic": nil, "KIP-848": {kgo.ServerSideBalancer()}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 2, func(r *rig) {
				const messages = 10
				r.produce(0, messages)
				r.produce(1, messages)
				far := kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
					c, err := r.net.DialContext(ctx, network, address)
					if err != nil {
						return nil, err
					}
					return proxy.Delay(c, 1500*time.Millisecond), nil
				})
				began := time.Now()
				p := r.run(r.source(with(append(opts, far)...)), (&worker{sink: r.sink, name: "a"}).own)
				r.until("all is applied", func() bool { return r.sink.exactly(part(0), messages) && r.sink.exactly(part(1), messages) })
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v", took)
				}
				for n := range int32(2) {
					if errs := r.sink.errors(part(n)); len(errs) > 0 {
						t.Errorf("partition %d: %v", n, errs)
					}
				}
				if err := p.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
