package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTimes returns the processor time so far of this process, and of each process of the PostgreSQL
// server with that process ID. It returns nil for 0.
func cpuTimes(postgres int) map[string]time.Duration {
	if postgres == 0 {
		return nil
	}
	all, err := readCPUTimes(postgres)
	if err != nil {
		panic(fmt.Sprintf("bench: the time of processors: %v", err)) // the process runs only this variant
	}
	return all
}

func readCPUTimes(postgres int) (map[string]time.Duration, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return nil, err
	}
	all := map[string]time.Duration{"self": time.Duration(own.Utime.Nano() + own.Stime.Nano())}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", postgres))
	if err != nil {
		return nil, err
	}
	for _, pid := range strings.Fields(string(children)) {
		text, err := os.ReadFile(filepath.Join("/proc", pid, "schedstat"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the process has just ended
		}
		if err != nil {
			return nil, err
		}
		ran, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/%s/schedstat: %w", pid, err)
		}
		all[pid] = time.Duration(ns)
	}
	return all, nil
}
