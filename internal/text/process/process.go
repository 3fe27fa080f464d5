// Package process names this process.
package process

import (
	"fmt"
	"os"
)

// Name names this process for operators: host and process id.
func Name() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// Named returns the given name with [Name] appended, because several processes may have it.
func Named(given string) string {
	if given == "" {
		return Name()
	}
	return given + "@" + Name()
}
