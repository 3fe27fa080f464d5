package tenures

import (
	"fmt"
	"os"
)

// Process names this process for operators who look for it: host and process id.
func Process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// Named is the name of this process where it was given one, which several may have.
func Named(given string) string {
	if given == "" {
		return Process()
	}
	return given + "@" + Process()
}
