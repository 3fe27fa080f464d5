// Command bench compares the fence with code written by hand:
//
//	make bench                    # all rows: half an hour
//	make bench BENCH='-row fence' # those whose names contain it
//	make figures WHAT=performance              # all rows, docs/performance.md with their figures, and internal/contrib/bench/ratios.json
//	.ci/run shows                 # CI's rows: fails if a figure is a fifth below that in internal/contrib/bench/ratios.json
//	make figures WHAT=ratios                   # internal/contrib/bench/ratios.json alone, after a slower figure was accepted
//
// A row is a task and the variants that do it. Each variant runs in a process of its own, on
// services that bench starts. The variants of a row run one after the other, and each round begins
// with another variant. A figure is the median over the rounds of the ratio within a round, because
// a noisy machine slows both sides of a ratio. After each process, bench counts and sums the rows
// in the database. A run that has written a row twice, or not at all, fails. A peer without a guard
// that has written a row twice is run again instead.
//
// CI's rows are measured in another way, so that they mean something on a busy machine: see ciRows.
package main
