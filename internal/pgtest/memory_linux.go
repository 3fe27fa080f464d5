package pgtest

import "syscall"

// memoryDir is where a server that need not survive the machine keeps its data:
// in memory, where there is room for it. What hundreds of databases' files cost
// that are created and dropped is otherwise most of a test's time: ext4 looks
// through every inode that was freed in the last minutes before it takes one.
// It is "", os.MkdirTemp's default, elsewhere.
func memoryDir() string {
	const (
		dir  = "/dev/shm"
		room = 4 << 30 // containers often have 64 MiB there
	)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || int64(fs.Bavail)*int64(fs.Bsize) < room { //nolint:unconvert // int32 on some processors
		return ""
	}
	return dir
}
