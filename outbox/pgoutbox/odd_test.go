package pgoutbox_test

import (
	"context"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestSettingsOfTheRoleDoNotChangeEntries(t *testing.T) {
	d := pgtest.Start(t)
	if err := pgsink.Migrate(t.Context(), d.Superuser(t), pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	d.Odd(t)
	for i, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			config, err := pgx.ParseConfig(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			config.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
			store, err := pgoutbox.Open[pgx.Tx](t.Context(), conn, pgoutbox.Options{})
			if err != nil {
				t.Fatal(err)
			}
			p := ours
			p.Number = int32(i)
			e := outbox.Entry{
				Key: "k", Scope: "s", IdempotencyKey: mode.String(), Method: "POST", URL: "http://host/path",
				Header: http.Header{"A": {"NULL"}}, Body: []byte("\\x00 \\ \x00\x7f\x80\xff\\134 ü"),
			}
			begun := time.Now()
			var rows, loaded []outbox.Row
			var oldest time.Time
			err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if err := store.Add(t.Context(), tx, epoch.Message{Partition: p, Offset: 7}, e); err != nil {
					return err
				}
				if rows, _, err = store.Scan(t.Context(), tx, p, outbox.Cursor{}, 9); err != nil {
					return err
				}
				if loaded, err = store.Load(t.Context(), tx, p, []int64{rows[0].ID}); err != nil {
					return err
				}
				_, oldest, err = store.Count(t.Context(), tx, p, 9)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range []outbox.Row{rows[0], loaded[0]} {
				if !reflect.DeepEqual(got.Entry, e) {
					t.Errorf("read: %+v, want %+v", got.Entry, e)
				}
			}
			pooled, err := pgxpool.ParseConfig(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			pooled.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), pooled)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			op, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
			if err != nil {
				t.Fatal(err)
			}
			listed, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{Number: &p.Number})
			if err != nil {
				t.Fatal(err)
			}
			shown, err := op.OutboxEntry(t.Context(), rows[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			want := operate.OutboxEntry{
				ID: rows[0].ID, Partition: p, Offset: 7, Key: e.Key, Scope: e.Scope, IdempotencyKey: e.IdempotencyKey,
				Method: e.Method, URL: e.URL, Header: e.Header, Body: e.Body, AddedAt: shown.AddedAt,
			}
			if !reflect.DeepEqual(shown, want) {
				t.Errorf("shown: %+v, want %+v", shown, want)
			}
			want.URL, want.Header, want.Body = "http://host", nil, nil
			if !reflect.DeepEqual(listed, []operate.OutboxEntry{want}) {
				t.Errorf("listed: %+v, want %+v", listed, want)
			}
			if err := op.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxRetry, Seen: listed[0], By: "anna", Reason: "now"}); err != nil {
				t.Fatal(err)
			}
			log, err := op.History(t.Context(), operate.HistoryQuery{Partition: &p, Kinds: []operate.DecisionKind{operate.DecidedOutboxRetry}})
			if err != nil || len(log) != 1 {
				t.Fatal(log, err)
			}
			for _, at := range []time.Time{oldest, listed[0].AddedAt, shown.AddedAt, log[0].At} {
				if at.Sub(begun).Abs() > time.Minute {
					t.Errorf("added at %v, %v, %v, recorded at %v; it is %v", oldest, listed[0].AddedAt, shown.AddedAt, log[0].At, begun)
				}
			}
		})
	}
}
