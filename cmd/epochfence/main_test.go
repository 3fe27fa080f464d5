package main

import (
	"os"
	"testing"
)

// TestMain lets the test binary be a consumer's process, or the program, as well.
func TestMain(m *testing.M) {
	if name := os.Getenv("EPOCHFENCE_TEST_WORKER"); name != "" {
		os.Exit(work(name))
	}
	if name := os.Getenv("EPOCHFENCE_TEST_SHIPPER"); name != "" {
		os.Exit(ship(name))
	}
	if os.Getenv("EPOCHFENCE_TEST_ITSELF") != "" {
		os.Exit(interruptible(os.Args[1:]))
	}
	os.Exit(m.Run())
}
