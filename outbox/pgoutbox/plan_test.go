package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// What PostgreSQL knows of a table, and the plans that a connection keeps, may date
// from when there was no backlog.
func TestWhatIsReadForAFewEntriesDoesNotGrowWithTheBacklog(t *testing.T) {
	const backlog, batch = 3000, 64
	for name, history := range map[string][]string{
		"never analyzed":                      {"use", "backlog"},
		"analyzed when empty":                 {"vacuum (analyze) %", "use", "backlog"},
		"analyzed with the backlog":           {"use", "backlog", "analyze %", "use"},
		"analyzed with the backlog of others": {"others", "analyze %", "use", "backlog"},
		"analyzed with our backlog alone":     {"backlog", "analyze %", "use", "others"},
		"a long one of others behind ours":    {"use", "backlog", "behind"},
	} {
		for _, mode := range []string{"auto", "force_generic_plan"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				conn := pgtest.Start(t).Superuser(t)
				if err := pgsink.Migrate(t.Context(), conn, pgsink.Options{}); err != nil {
					t.Fatal(err)
				}
				exec := func(sql string, args ...any) {
					t.Helper()
					if _, err := conn.Exec(t.Context(), strings.ReplaceAll(sql, "%", "epochfence.outbox_entry"), args...); err != nil {
						t.Fatal(err)
					}
				}
				exec(`alter table % set (autovacuum_enabled = off)`)
				exec(`set plan_cache_mode = ` + mode)
				store, err := pgoutbox.Open[pgx.Tx](t.Context(), conn, pgoutbox.Options{})
				if err != nil {
					t.Fatal(err)
				}
				fill := func(p epoch.Partition, n int) {
					exec(`insert into % (group_name, topic, partition, order_key, scope, idempotency_key, method, url, header, body)
						select $1, $2, $3, 'key ' || mod(i, 70), 's', i::text, 'POST', 'http://host/', '{}', convert_to(repeat('x', 1500), 'UTF8') from generate_series(1, $4::int) i`,
						p.Group, p.Topic, p.Number, n)
				}
				inTx := func(do func(tx pgx.Tx) error) {
					t.Helper()
					tx, err := conn.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
					if err := do(tx); err != nil {
						t.Fatal(err)
					}
				}
				// The middle of the backlog, as a relay has it that has sent what was before.
				var last int64
				round := func(check func(what string, do func(tx pgx.Tx) error)) {
					var at outbox.Cursor
					inTx(func(tx pgx.Tx) (err error) {
						_, at, err = store.Scan(t.Context(), tx, ours, outbox.Cursor{}, 1)
						return err
					})
					at.ID = last + backlog/2
					check("Scan", func(tx pgx.Tx) error { _, _, err := store.Scan(t.Context(), tx, ours, at, batch); return err })
					ids, places := make([]int64, 0, batch), make([]outbox.Place, 0, batch)
					for i := range batch {
						ids = append(ids, last+backlog/2+int64(i))
						places = append(places, outbox.Place{Key: fmt.Sprint("key ", i), ID: last + backlog/2 + int64(i)})
					}
					check("Add", func(tx pgx.Tx) error {
						return store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: "key"})
					})
					check("Count", func(tx pgx.Tx) error { _, _, err := store.Count(t.Context(), tx, ours, batch); return err })
					check("Load", func(tx pgx.Tx) error { _, err := store.Load(t.Context(), tx, ours, ids); return err })
					check("Next", func(tx pgx.Tx) error { _, err := store.Next(t.Context(), tx, ours, at, places); return err })
					check("Delete", func(tx pgx.Tx) error { _, err := store.Delete(t.Context(), tx, ours, ids); return err })
					check("Retries", func(tx pgx.Tx) error { _, err := store.Retries(t.Context(), tx, ours, ids); return err })
					operator := func(what, sql string, args ...any) {
						check("an operator's "+what, func(tx pgx.Tx) error {
							_, err := tx.Exec(t.Context(), `select from epochfence.`+sql, args...)
							return err
						})
					}
					operator("list", `rows('outbox', null, null, null, null, null, null, null, $1, null, null, false, $2)`, at.ID, batch)
					operator("look at one", `rows('outbox', $1, null, null, null, null, null, null, null, null, null, false, null)`, at.ID)
					operator("look at its contents", `contents('outbox', array[$1::bigint])`, at.ID)
					for kind, remove := range map[string]bool{"outbox-retry": false, "outbox-discard": true} {
						check("an operator's "+kind, func(tx pgx.Tx) error {
							var key string
							err := tx.QueryRow(t.Context(), `select idempotency_key from epochfence.outbox_entry where id = $1 and partition = $2`, pgx.QueryExecModeExec, at.ID, ours.Number).Scan(&key)
							there := !errors.Is(err, pgx.ErrNoRows)
							err = pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
								_, err := tx.Exec(t.Context(), `select epochfence.act_on_row('outbox', $1, 0, $2, $3, $4, $5, $6, '', '', '', gen_random_uuid()::text, 0, 0, $7, 'r', 'anna', '{}')`,
									at.ID, remove, key, ours.Group, ours.Topic, ours.Number, kind)
								return err
							})
							if pg, ok := errors.AsType[*pgconn.PgError](err); !there && ok && pg.Code == "XF015" {
								return nil
							}
							return err
						})
					}
				}
				for _, step := range history {
					switch step {
					case "use":
						for range 7 { // after five, a statement that is kept gets the plan that it keeps
							round(func(_ string, do func(pgx.Tx) error) { inTx(do) })
						}
					case "backlog":
						if err := conn.QueryRow(t.Context(), `select coalesce(max(id), 0) from epochfence.outbox_entry`).Scan(&last); err != nil {
							t.Fatal(err)
						}
						fill(ours, backlog)
					case "others":
						for i := range 4 {
							fill(epoch.Partition{Group: ours.Group, Topic: ours.Topic, Number: ours.Number + 1 + int32(i)}, backlog)
						}
					case "behind":
						exec(`insert into % (group_name, topic, partition, order_key, scope, idempotency_key, method, url, header, body)
							select $1, $2, $3 + 1, '', '', '', '', '', '', '' from generate_series(1, 100000) i`, ours.Group, ours.Topic, ours.Number)
					default:
						exec(step)
					}
				}
				count := func(tx pgx.Tx) (rows, blocks int64) { // since the connection last told the others
					err := tx.QueryRow(t.Context(), `select sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)),
						sum(pg_stat_get_xact_blocks_fetched(oid)) from pg_class where relname like 'outbox\_entry%'`).Scan(&rows, &blocks)
					if err != nil {
						t.Fatal(err)
					}
					return rows, blocks
				}
				round(func(what string, do func(pgx.Tx) error) {
					inTx(func(tx pgx.Tx) error {
						rows, blocks := count(tx)
						if err := do(tx); err != nil {
							return err
						}
						rowsThen, blocksThen := count(tx)
						if rows, blocks := rowsThen-rows, blocksThen-blocks; rows > 5*batch || blocks > 8*batch {
							t.Errorf("%s of %d entries read %d rows and index entries, %d blocks", what, batch, rows, blocks)
						}
						return nil
					})
				})
			})
		}
	}
}
