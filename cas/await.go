package cas

import "context"

// This file lets a driver return when the context ends, although its client does not.

// Await calls do in a goroutine, and returns the result of do, or ctx.Err() once ctx has ended. It
// is for clients that do not end a call with its context: the store may still carry out the
// request. The function do must not write to what the caller reads.
func Await[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
