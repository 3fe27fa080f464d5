package main

import (
	"errors"
	"os"
	"runtime/pprof"
)

// profile begins a CPU profile. end ends it, and writes the allocations since the process began.
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
