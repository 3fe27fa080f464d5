// Package natstest runs the real nats-server inside this process, for tests and examples.
//
//	s := natstest.Start(t)
//	nc := s.Connect(t)
//
// starts one server with JetStream. [StartCluster] starts a cluster of several, whose nodes may be
// stopped, restarted, and cut off from each other and from their clients. [New] and [NewCluster] do
// the same for programs that are not tests.
//
// Servers listen on 127.0.0.1 alone, on free ports, have a data directory of their own, and end
// with the test.
package natstest
