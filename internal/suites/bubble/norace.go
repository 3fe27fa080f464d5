//go:build !race

package bubble

const raced = false

func oneProcessor() (release func()) { return func() {} }
