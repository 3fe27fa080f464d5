package sinktest

// places are those in which the idioms that have to do with transactions are played
// besides the handler.
var places = []string{inBatches, inOnFailure}
