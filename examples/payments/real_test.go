package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/internal/show"
)

// The long form of this, on a cluster, is `make demo-payments-real`.
func TestAServerAndAPostgresOfOthersEndExactAndAreLeftAsTheyWere(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	status := show.Run(ctx, newPayments(), []string{
		"-nats", b.conn.ConnectedUrl(), "-database", db.URL, "-messages", "1500", "-partitions", "8", "-duration", "12s",
	}, &out, &errOut)
	t.Log(out.String() + errOut.String())
	if status != show.StatusExact {
		t.Errorf("status %d", status)
	}
	if !strings.Contains(out.String(), "the baseline's is not exact") {
		t.Error("freezes and kills did the baseline no harm")
	}

	for name := range b.js.StreamNames(ctx).Name() {
		t.Errorf("left in JetStream: %s", name)
	}
	rows, _ := db.Superuser(t).Query(ctx, `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'payments%'`)
	if schemas, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(schemas) > 0 {
		t.Errorf("left in PostgreSQL: %v, %v", schemas, err)
	}
}
