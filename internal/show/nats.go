package show

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// StartNATS starts a nats-server in this process, with its streams below dir.
func StartNATS(dir string) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 4 << 30,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return "", nil, fmt.Errorf("start a nats-server: %w", err)
	}
	s.Start()
	stop = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(Preparing) {
		stop()
		return "", nil, fmt.Errorf("the nats-server of this process is not ready after %v", Preparing)
	}
	return s.ClientURL(), stop, nil
}
