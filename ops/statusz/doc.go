// Package statusz is a page that shows how the consumers of a sink are doing, for operators:
// partitions, owners, epochs, lag and rates, what has halted and what to do about it,
// takeovers and refusals, dead letters and the outbox. It is a handler to mount:
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
// What it knows of this process comes from package ops/stats; what it knows of all
// processes of the group, from the sink, by an [operate.Operator]. However many operators look
// at the overview, the sink is read once a second at most, and not at all while nobody
// looks; the page of a partition and the preview of an act read it each time. Every page
// says when it was read.
//
// The page is HTML that works without script. With it, the page keeps itself up to date
// by server-sent events. It holds no contents of messages, dead letters and requests.
//
// # Who may look, and who may act
//
// The handler lets in whoever reaches it: put it behind the authentication that the
// application has, or on a port that only operators reach. It shows no forms and takes no
// POST unless [Options.MayAct] says who acts. Requests that another site makes a
// browser send are refused ([http.CrossOriginProtection]), and scripts and styles come from the
// handler alone, by its Content-Security-Policy.
//
// # Probes
//
// [Livez] says that this process serves requests, and looks at nothing else: a broker
// or a database that is away, a partition that has halted or is behind are not fixed by a
// restart, which only makes others take partitions over. A program ends when
// consumer.Run does; that is what has it restarted.
//
// [Readyz] says that this process is a member of the group and has claimed each
// partition that it holds. It is for a rolling deployment to wait for; it never looks at how far
// behind they are.
package statusz
