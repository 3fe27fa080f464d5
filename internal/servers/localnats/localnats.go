// Package localnats starts a nats-server for an example that is run without one.
package localnats

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const starting = 30 * time.Second

// Start starts a nats-server in this process, with its streams below dir, at a port that is free.
func Start(dir string) (url string, stop func(), err error) {
	return StartAt(dir, server.RANDOM_PORT)
}

// StartAt is Start at a port, such as that of a server that was stopped.
func StartAt(dir string, port int) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 4 << 30,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return "", nil, fmt.Errorf("start a nats-server: %w", err)
	}
	s.Start()
	stop = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(starting) {
		stop()
		return "", nil, fmt.Errorf("the nats-server of this process is not ready after %v", starting)
	}
	return s.ClientURL(), stop, nil
}
