// Package show is what the example shows have in common: flags, databases for
// each column, worker processes that can be frozen and killed at a chosen point
// of their work, in a transaction or at a request to another system, a schedule of
// such incidents that is played alike on several columns, an audit of what the
// workers left, and how all of it is shown to an operator.
//
// A show is one program in several processes. The parent ([Run]) starts itself
// again for each worker ([Crew.Start], [Enter]) and each other process that it
// needs ([StartHelper]), sends it orders as lines of JSON on
// its standard input and reads reports from its standard output. A worker
// ends when its standard input does, and with its parent ([Crew.Start]), so
// none is left behind however the parent ends.
//
// Nothing here decides whether a show went well by what workers report. Reports
// say when to freeze, when to thaw and when everything is done; [Audit] judges
// by the database.
package show
