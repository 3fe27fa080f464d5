//go:build unix && !linux

package main

import "syscall"

// followUs does nothing: only Linux has a death signal.
func followUs(*syscall.SysProcAttr) {}
