package pgtest

import "syscall"

// memoryDir returns a directory in memory for a server that need not survive the machine, or "",
// os.MkdirTemp's default, if memory has too little room. On disk, creating and dropping hundreds of
// databases takes most of a test's time: before ext4 takes an inode, it searches all inodes that
// were freed in the last minutes.
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
