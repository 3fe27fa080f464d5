package main

import "slices"

var guards = slices.Concat(guardsOfFences, guardsOfConsumer, guardsOfLeases, guardsOfOutside)

// Each entry of these tables is one place where a rule of the protocol (docs/guarantees.md#the-rules)
// is kept. A place has one entry, for the strongest guard there. Code that no rule is about has none:
// its suites notice what it does wrong. An entry is written like this:
//
//	{"R1", "the position is not compared", []edit{
//		{"epoch/fence.go", "if f.Next != a.From {", "if false {"},
//	}, "epoch", "TestAdvanced"},
//
// It consists of the rule, the module's behaviour without the guard, the edits that take the guard
// away, and the package and name of a test that then fails. Of several such tests, take the fastest.
//
//   - The file must have the tokens of an edit's old text, in this order, exactly once. Comments
//     and white space do not count, neither in the file nor in the text, so guards contain no
//     comments. A text that is only a part of a string literal is found in that literal, byte by
//     byte.
//   - The new text replaces the range from the first of those tokens to the last. The function must
//     still compile: use false instead of a condition, or _ = x for an otherwise unused variable.
//   - All edits of a guard are found in the original files, and do not overlap.
//   - An edit is in the body of a function that does not call recover itself, or in an SQL script.
//
// Afterwards run go run ./internal/mutation "the position is not compared" to see that the test
// catches it. If a guard's text is no longer found, the tests of this package fail within seconds.

// guard is a piece of code that keeps a rule, and the test that fails without it.
type guard struct {
	rule  string
	taken string // the module's behaviour without it
	edits []edit // the edits that take it away
	pkg   string
	test  string // the name of a test or subtest, with blanks
}

// edit replaces a text whose tokens the file has exactly once.
type edit struct{ file, old, new string }
