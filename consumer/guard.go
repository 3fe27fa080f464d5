package consumer

import "runtime/debug"

// guard calls f and turns a panic into an error, so that one message cannot
// take the process and its other partitions down.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
