// Package natstest runs the real nats-server, inside this process, for tests
// and examples.
//
//	s := natstest.Start(t)
//	nc := s.Connect(t)
//
// starts one server with JetStream. [StartCluster] starts several that form
// one cluster, whose nodes may be stopped, restarted, and cut off from each
// other and from their clients. [New] and [NewCluster] are the same for a
// program that is not a test.
//
// Servers listen on 127.0.0.1 alone, on free ports, keep their data in a
// directory of their own, and are gone when the test ends.
package natstest
