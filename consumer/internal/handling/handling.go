// Package handling keeps the method Functions of consumer.Handlers to this module.
package handling

// Key is the argument of Functions.
type Key struct{}
