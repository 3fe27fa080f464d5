package consumer

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestZeroOptionsWork(t *testing.T) {
	o, err := Options{}.withDefaults(0)
	if err != nil {
		t.Fatal(err)
	}
	if o.MaxBatch != 16_384 || o.MaxAttempts != 10 || o.Logger == nil || o.Observe == nil {
		t.Errorf("defaults are not as documented: %+v", o)
	}
}

func TestASinkSaysHowManyTransactionsAreOpenByDefault(t *testing.T) {
	for says, want := range map[int]int{-1: 1, 0: 1, 1: 1, 3: 3, 4: 4, 100: 4} {
		if o, err := (Options{}).withDefaults(says); err != nil || o.Committers != want {
			t.Errorf("of %d: %d, %v; want %d", says, o.Committers, err, want)
		}
	}
	if o, err := (Options{Committers: 9}).withDefaults(4); err != nil || o.Committers != 9 {
		t.Errorf("what the user has set: %d, %v", o.Committers, err)
	}
}

func TestImpossibleOptionsAreNamedWithTheirLimits(t *testing.T) {
	for name, o := range map[string]Options{
		"MaxBatch is -1":                        {MaxBatch: -1},
		fmt.Sprint("MaxBatch is ", math.MaxInt): {MaxBatch: math.MaxInt},
		"Committers is -3":                      {Committers: -3},
		"Committers is 1000000":                 {Committers: 1_000_000},
		"MaxAttempts is -1":                     {MaxAttempts: -1},
		"BatchTimeout is -1s":                   {BatchTimeout: -time.Second},
		"RetryMin is -1ns":                      {RetryMin: -1},
		"RetryMax is 2562047h47m16.854775":      {RetryMax: 1<<63 - 1},
		"RetryMin 2s is above RetryMax 1s":      {RetryMin: 2 * time.Second, RetryMax: time.Second},
		"HaltMin 2m0s is above HaltMax 1m":      {HaltMin: 2 * time.Minute, HaltMax: time.Minute},
		"Guarantee is 5":                        {Guarantee: 5},
		"Guarantee is -1":                       {Guarantee: -1},
		"Start is 7":                            {Start: 7},
		"Patience is 999ms":                     {Patience: 999 * time.Millisecond},
		"Patience is 25h0m0s":                   {Patience: 25 * time.Hour},
	} {
		if _, err := o.withDefaults(0); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestANegativePatienceIsNone(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, time.Second, 24 * time.Hour} {
		if o, err := (Options{Patience: d}).withDefaults(0); err != nil || o.Patience != d {
			t.Errorf("%v becomes %v, %v", d, o.Patience, err)
		}
	}
}

func TestALowerBoundAloneRaisesTheUpperOne(t *testing.T) {
	o, err := Options{RetryMin: time.Minute, HaltMin: time.Hour}.withDefaults(0)
	if err != nil || o.RetryMax != time.Minute || o.HaltMax != time.Hour {
		t.Errorf("RetryMax %v, HaltMax %v, %v", o.RetryMax, o.HaltMax, err)
	}
}
