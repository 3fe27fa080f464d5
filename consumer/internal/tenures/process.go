package tenures

import (
	"fmt"
	"os"
)

// Process names this process for operators: host and process id.
func Process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// Named returns the given name with [Process] appended, because several processes may have it.
func Named(given string) string {
	if given == "" {
		return Process()
	}
	return given + "@" + Process()
}
