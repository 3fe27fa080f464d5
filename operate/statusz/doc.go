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
// The state of this process comes from package operate/stats. The state of all processes of the group
// comes from the sink, by an [operate.Operator]. However many operators look at the overview, it
// reads the sink at most once a second, and not at all while nobody looks. The page of a partition
// and the preview of an action read the sink each time. Every page shows when it was read.
//
// The page is HTML that works without script. With script, server-sent events keep the page up to
// date. It shows no contents of messages, dead letters and requests.
//
// # Access
//
// The handler lets in every request that reaches it. Put it behind the application's
// authentication, or on a port that only operators reach. It shows no forms and takes no POST
// unless [Options.MayAct] names who acts. It refuses cross-origin requests that would
// change something ([http.CrossOriginProtection]), and its Content-Security-Policy allows scripts
// and styles from the handler alone.
//
// # Probes
//
// [Livez] reports that this process serves requests, and checks nothing else. A restart does not
// fix an unavailable broker or database, a halted partition or a lag; it only makes other processes
// take partitions over. The program ends when consumer.Run returns, and is restarted then.
//
// [Readyz] reports that this process is a member of the group, has claimed each partition that the
// source granted, none of them has halted unless an operator has paused it, and no call
// hangs. A rolling deployment waits for it. It
// never checks lag.
package statusz
