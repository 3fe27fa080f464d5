package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

type settings struct {
	show.Settings
	brokers []string // none means a fake one

	session time.Duration // the session timeout of the group's members
}

// kafkaMinSession is Kafka's default of group.min.session.timeout.ms.
const kafkaMinSession = 6 * time.Second

const rate = 8000

func parseFlags(args []string, out io.Writer) (settings, error) {
	s := settings{Settings: show.Settings{Messages: 50_000}, session: kafkaMinSession}
	fs := flag.NewFlagSet("inventory", flag.ContinueOnError)
	brokers := fs.String("brokers", "", "Kafka's `host:port`, several with commas; empty: a fake broker in this process")
	err := s.ParseFlags(fs, args, out, rate, func() error { return s.checkBrokers(*brokers) })
	return s, err
}

func (s *settings) checkBrokers(list string) error {
	if list == "" {
		return nil
	}
	for b := range strings.SplitSeq(list, ",") {
		b = strings.TrimSpace(b)
		if err := checkBroker(b); err != nil {
			return fmt.Errorf("-brokers: %w", err)
		}
		s.brokers = append(s.brokers, b)
	}
	return nil
}

func checkBroker(b string) error {
	host, port, err := net.SplitHostPort(b)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not host:port, such as 127.0.0.1:9092", b)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q: the port is not a number from 1 to 65535", b)
	}
	return nil
}
