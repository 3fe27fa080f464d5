// Package bench measures what the fence costs. It is a module of its own, so
// that what epochfence is measured against stays out of its dependencies.
//
//	go test -bench . -benchtime 30x
//
// Each iteration is a round: all variants do the same work, one after the other
// on one server, beginning with another one each time. What is reported is the
// median over the rounds of the ratio within a round, so that a noisy machine
// slows both sides. Afterwards the rows are counted.
package bench
