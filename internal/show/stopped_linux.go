package show

import (
	"os"
	"syscall"
)

const pPID = 1 // of waitid(2), which package syscall does not have

// awaitStopped asks for stops alone, so that the end of p is left to [os.Process.Wait].
func awaitStopped(p *os.Process) error {
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(p.Pid), 0, syscall.WSTOPPED, 0, 0)
		switch err {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return os.NewSyscallError("waitid", err)
		}
	}
}
