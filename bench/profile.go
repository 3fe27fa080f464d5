package main

import (
	"errors"
	"os"
	"runtime/pprof"
)

// profile begins a CPU profile. What it returns ends it and writes down what was allocated
// since the process began.
func profile(name string) (end func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(name + ".cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(name + ".allocs")
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		return errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close(), cpu.Close())
	}, nil
}

// snapshot writes down what is in memory now and where the goroutines are, by whoever
// made them.
func snapshot(name string) error {
	if name == "" {
		return nil
	}
	var errs []error
	for _, kind := range []string{"heap", "goroutine"} {
		f, err := os.Create(name + "." + kind)
		if err != nil {
			return err
		}
		errs = append(errs, pprof.Lookup(kind).WriteTo(f, 0), f.Close())
	}
	return errors.Join(errs...)
}
