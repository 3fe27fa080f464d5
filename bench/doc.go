// Command bench measures what the fence costs, beside what people write by hand and
// beside other libraries:
//
//	make bench                    # all rows: half an hour
//	make bench BENCH='-row fence' # those whose names contain it
//	make performance              # all rows, docs/performance.md with their figures, and bench/ratios.json
//	make bench-ci                 # CI's rows: fails if a figure is a fifth below that in bench/ratios.json
//	make ratios                   # bench/ratios.json alone, after a change that is worth what it costs
//
// A row is some work, and the variants that do it. Each variant runs in a process of its
// own, on services that bench starts. The variants of a row run one after the other, in
// each round beginning with another one, and a figure is the median over the rounds of
// the ratio within a round: a noisy machine slows both sides of it. After each process
// the rows in the database are counted and added up. A run that has written one twice, or
// not at all, has failed; but for a peer that has no guard and has written one twice, which is
// said, and run again.
//
// CI's rows are measured in another way, so that they mean something on a machine that is
// busy with other things: see ciRows.
//
// It is a module of its own, so that what epochfence is measured against stays out of its
// dependencies.
package main
