// Package subprocess freezes processes that this one has started, and sees to it that they end with it.
package subprocess

import (
	"os"
	"os/exec"
	"syscall"
)

// DieWithParent makes the kernel kill cmd when its parent ends (prctl(2), PR_SET_PDEATHSIG). That also
// ends a frozen process, which does not notice the end of its standard input.
//
// The kernel sends the signal when the thread ends that started cmd. Go keeps its threads, except
// those on which a goroutine has ended without runtime.UnlockOSThread.
func DieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

const pPID = 1 // of waitid(2), which package syscall does not have

// Freeze returns once no thread of p, a child, runs any more. The signal alone says nothing of that: a
// thread that is inside a system call ends it first, and may get a lock by it. Freeze waits for stops
// alone, so that the end of p is left to [os.Process.Wait], and leaves the stop to be found again.
func Freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(p.Pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		if err == 0 {
			return nil
		}
		if err != syscall.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// Thaw lets p go on.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
