package freeport_test

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/freeport"
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

func TestWhatWasTakenIsNotTakenAgain(t *testing.T) {
	var all []int
	for range 60 { // among 15,000, two of 600 are alike but for one time in 150,000
		ports, err := freeport.Take(10)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ports...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 600 {
		t.Errorf("%d different ports, want 600", n)
	}
}
