package show

import (
	"os"

	"golang.org/x/sys/unix"
)

// awaitStopped asks for stops alone, so that the end of p is left to [os.Process.Wait].
func awaitStopped(p *os.Process) error {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil)
		if err != unix.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}
