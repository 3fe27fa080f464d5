package freeport_test

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/internal/freeport"
)

func TestPortsAreFreeDifferAndAreNoneThatAClientIsGiven(t *testing.T) {
	ports, err := freeport.Take(50)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if n := len(slices.Compact(slices.Clone(ports))); n != 50 {
		t.Errorf("%d different ports, want 50", n)
	}
	for _, p := range ports {
		if p >= 32768 { // the lowest that Linux gives a client; others begin at 49152
			t.Errorf("port %d", p)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Error(err)
			continue
		}
		_ = l.Close()
	}
}
