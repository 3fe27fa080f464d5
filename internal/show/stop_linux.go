package show

import (
	"os"
	"os/exec"
	"syscall"
)

// followParent makes the kernel kill cmd when its parent ends. That also ends a frozen worker,
// which does not notice the end of its standard input.
//
// The kernel sends the signal when the thread ends that started cmd. Go keeps its threads, except
// those on which a goroutine has ended without runtime.UnlockOSThread. The shows have none.
func followParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

const pPID = 1 // of waitid(2), which package syscall does not have

// freeze returns once no thread of p, a child, runs any more. The signal alone says nothing of that: a
// thread that is inside a system call ends it first, and may get a lock by it. freeze waits for stops
// alone, so that the end of p is left to [os.Process.Wait].
func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(p.Pid), 0, syscall.WSTOPPED, 0, 0)
		if err == 0 {
			return nil
		}
		if err != syscall.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
