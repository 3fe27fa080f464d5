// Command bench measures what the fence costs, beside what people write by hand and
// beside other libraries:
//
//	make bench                    # all rows: half an hour
//	make bench BENCH='-row fence' # those whose names contain it
//	make performance              # all rows, and docs/performance.md with their figures
//
// A row is some work, and the variants that do it. Each variant runs in a process of its
// own, on services that bench starts. The variants of a row run one after the other, in
// each round beginning with another one, and a figure is the median over the rounds of
// the ratio within a round: a noisy machine slows both sides of it. After each process
// the rows in the database are counted and added up. A run that has written one twice, or
// not at all, has failed.
//
// It is a module of its own, so that what epochfence is measured against stays out of its
// dependencies.
package main
