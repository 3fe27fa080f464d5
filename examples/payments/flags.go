package main

import (
	"flag"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

type settings struct {
	show.Settings
	nats     string // empty means a server in this process
	replicas int

	lease time.Duration // after which other workers get a silent worker's messages
	// timeout is the timeout of a request to the gateway. All concurrent requests may queue there,
	// on a busy machine.
	timeout time.Duration
}

const rate = 1500

const mostReplicas = 5

func parseFlags(args []string, out io.Writer) (settings, error) {
	s := settings{Settings: show.Settings{Messages: 10_000}, lease: 3 * time.Second, timeout: 3 * time.Second}
	fs := flag.NewFlagSet("payments", flag.ContinueOnError)
	fs.StringVar(&s.nats, "nats", "", "nats://… `URL` of servers with JetStream, several with commas; empty: a server in this process")
	fs.IntVar(&s.replicas, "replicas", 1, "replicas of streams and leases, 1 to 5, as a `number`; more than one needs -nats")
	err := s.ParseFlags(fs, args, out, rate, s.check)
	return s, err
}

func (s *settings) check() error {
	if s.replicas < 1 || s.replicas > mostReplicas {
		return fmt.Errorf("-replicas is %d; want 1 to %d", s.replicas, mostReplicas)
	}
	if s.nats == "" {
		if s.replicas > 1 {
			return fmt.Errorf("-replicas is %d, and the one server in this process keeps 1; name a cluster with -nats", s.replicas)
		}
		return nil
	}
	for u := range strings.SplitSeq(s.nats, ",") {
		if err := checkNATS(strings.TrimSpace(u)); err != nil {
			return fmt.Errorf("-nats: %w", err)
		}
	}
	return nil
}

// checkNATS repeats only the host of a URL in its errors, because a password may be before it.
func checkNATS(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("one of the URLs cannot be read; want such as nats://127.0.0.1:4222")
	case u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "":
		return fmt.Errorf("%q is not a URL of NATS, such as nats://127.0.0.1:4222", u.Redacted())
	}
	return nil
}

// silentEvery makes the gateway not answer about twenty payments of a show at first.
func (s settings) silentEvery() int { return max(1, s.Messages/20) }
