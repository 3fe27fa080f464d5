package main

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestStandingBehindAnOpenTransactionDoesNotLookWell(t *testing.T) {
	l := atWork(t, inSQLite(t, none))
	l.through()
	l.standsBehindAnOpenTransaction()
}

// standsBehindAnOpenTransaction begins after everything is applied.
func (l *live) standsBehindAnOpenTransaction() {
	t := l.t
	t.Helper()
	l.does(exitOK, "check", "--max-age", "1ms")
	producer, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"), kgo.TransactionalID("shop-7"))
	must(t, err)
	defer producer.Close()
	must(t, producer.BeginTransaction())
	for range 3 {
		must(t, producer.ProduceSync(t.Context(), &kgo.Record{Partition: 1, Value: []byte("order")}).FirstErr())
	}
	const said = `3 offsets beyond END can be read only when the open transaction of producer "shop-7" has ended; it is open since 20`
	tells(t, l.does(exitOK, "describe", "orders/1").out, " 0+3 ", "billing/orders/1: "+said)
	tells(t, l.does(exitTrouble, "check", "--max-age", "1ms").out, "TROUBLE: 1 finding", "open transaction of billing/orders/1: "+said)
	l.does(exitOK, "check") // it has been open for less than a minute
	must(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
	l.awaits("nothing stands behind it", func() bool { return l.run("check", "--max-age", "1ms").code == exitOK })
}
