package sinktest

import (
	"sync"
	"testing"
)

// table collects the outcomes.
type table struct {
	mu sync.Mutex
}

func newTable(t *testing.T) *table { return &table{} }

func (t *table) note(mode, place, idiom, outcome string) {}
