// Package show has what the examples share: flags, a database for each column, worker processes,
// incidents, an audit and the display. An incident freezes or kills a worker at a chosen point of
// its work: in a transaction, or at a request to another system. All columns play the same schedule
// of incidents.
//
// A show is one program in several processes. The parent ([Run]) starts itself again for each
// worker ([Crew.Start], [Enter]), with its configuration in the environment. It sends orders as
// lines of JSON on the process's standard input, and reads reports from its standard output. A
// worker ends when its standard input ends, and with its parent, so no worker outlives the parent.
//
// Workers' reports only say whom to strike, and when. Whether messages are applied is read from the
// database, and [Audit] judges the result by the database alone.
package show
