// Package statusz serves a status page for operators. The page shows the consumers of a sink:
// partitions, owners, epochs, lag and rates, halts and what to do about them, takeovers and
// refusals, dead letters and the outbox. It is an http.Handler to mount:
//
//	s := stats.New() // the observer in consumer.Options
//	op, err := pgsink.OpenOperator(ctx, pool, pgsink.Options{})
//	…
//	page, err := statusz.New(statusz.Options{Stats: s, Operator: op})
//	…
//	mux.Handle("/status/", http.StripPrefix("/status", page))
//	mux.HandleFunc("/livez", statusz.Livez)
//	mux.Handle("/readyz", statusz.Readyz(s))
//
// The page hides when the sink is read, and how the state of this process (package stats) is combined
// with that of the group ([operate.Operator]). The overview reads the sink at most once a second for all viewers, and not at all while
// nobody looks. It is HTML that works without script, and shows no contents of messages and
// requests.
//
// The handler lets in every request that reaches it: put it behind the application's
// authentication. It takes no POST unless [Options.MayAct] names who acts, refuses cross-origin
// requests that would change something, and allows scripts and styles from itself alone. Package
// operate decides about actions.
//
// [Livez] checks nothing but that this process serves requests, because a restart fixes no
// database, broker or halt. [Readyz] reports [consumer.Status.Ready].
package statusz
