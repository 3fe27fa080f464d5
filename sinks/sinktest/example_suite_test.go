package sinktest_test

import "testing"

func TestTheSinkOfTheExamplePassesTheSuite(t *testing.T) { testStore(t) }
