package main

import "syscall"

// followUs makes the kernel send the command SIGTERM when this process is killed, which could not pass
// that on. Others get the lock after a TTL.
func followUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
