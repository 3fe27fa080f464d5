package pgsink

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func TestAStatementIsKnownByItsWords(t *testing.T) {
	var (
		shared   = kind{}
		apart    = kind{apart: true}
		controls = kind{never: epoch.ErrTxControl}
		copies   = kind{never: errCopyText}
		encodes  = kind{never: errEncoding}
	)
	for text, want := range map[string]kind{
		"insert into t values ($1)":                                         shared,
		"insert into t values ('commit; set x = 1'); select 1":              shared,
		"-- name: Reserve :exec\nupdate stock set left_over = $1 -- set it": shared,
		"update t set local = 1 where temp = 2":                             shared,
		"update stock set a = 1; update stock set a = 2":                    shared,
		"insert into temp (a) values (1)":                                   shared,
		"with a as (select 1) select * from a":                              shared,
		"(select 1) union (select 2)":                                       shared,
		"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE":        shared,
		"values (1)":                           shared,
		"lock table t in share mode":           shared,
		"notify news, 'x'":                     shared,
		"call p($1)":                           shared,
		"select pg_advisory_xact_lock(1)":      shared,
		"select current_setting('app.tenant')": shared,
		"copy t to '/tmp/x'":                   shared,
		"truncate t":                           shared,
		"create table listen (a int)":          shared,
		"create table if not exists t_2026 partition of t default": shared,
		"alter table t add a int; comment on table t is 'x'":       shared,
		"":                                          shared,
		";; -- nothing":                             shared,
		"commit":                                    controls,
		" /* a */ Commit And Chain":                 controls,
		"insert into t values (1); commit":          controls,
		"begin":                                     controls,
		"start transaction":                         controls,
		"end":                                       controls,
		"abort":                                     controls,
		"rollback":                                  controls,
		"rollback prepared 'x'":                     controls,
		"prepare transaction 'x'":                   controls,
		"select 1; prepare transaction 'x'":         controls,
		"copy t from stdin; commit":                 controls,
		"commit; copy t from stdin":                 controls,
		"copy t from stdin":                         copies,
		"copy t (a) to stdout":                      copies,
		"set local client_encoding = 'LATIN1'":      encodes,
		"SET NAMES 'LATIN1'":                        encodes,
		"savepoint a":                               apart,
		"rollback to a":                             apart,
		"rollback transaction to savepoint a":       apart,
		"release a":                                 apart,
		"set local search_path = x":                 apart,
		"SET CONSTRAINTS ALL DEFERRED":              apart,
		"set transaction read only":                 apart,
		"declare c cursor for select 1":             apart,
		"declare c cursor with hold for select 1":   apart,
		"select set_config('app.tenant', $1, true)": apart,
		"select set_config('a', $1, true), pg_catalog.set_config('b', $2, true)": apart,
		`select "set_config"('a', $1, $2)`:                                       apart,
		`select U&"set\005fconfig"('a', $1, $2)`:                                 apart,
		"set search_path = x":                                                    apart,
		"set role x":                                                             apart,
		"set session characteristics as transaction read only":                   apart,
		"-- name: Twice :exec\nset search_path = nowhere":                        apart,
		"reset all":                        apart,
		"select 1; /* then */ Listen news": apart,
		"prepare p as select 1":            apart,
		"execute p":                        apart,
		"create temp table x (a int)":      apart,
		"create local temporary table x (a int) on commit drop":              apart,
		"create or replace temp view x as select 1":                          apart,
		"create table pg_temp.x (a int)":                                     apart,
		"insert into pg_temp_3.x values (1)":                                 apart,
		"select * into temporary x from t":                                   apart,
		"select pg_advisory_lock(1)":                                         apart,
		"select pg_try_advisory_lock(1)":                                     apart,
		"select query_to_xml('select pg_advisory_lock(1)', true, false, '')": apart,
		"load 'x'":                          apart,
		"deallocate all":                    apart,
		"discard all":                       apart,
		"do $$ begin perform 1; end $$":     apart,
		"explode":                           apart,
		"insert into t values (1); explode": apart,
		"select 'open":                      apart,
		`select '\'; select 1; --'`:         apart,
	} {
		if got := classify(text); got.apart != want.apart && want.never == nil || !errors.Is(got.never, want.never) {
			t.Errorf("%q is %+v; want %+v", text, got, want)
		}
	}
	if got := classify(`select '\'; commit; --'`); !got.apart || !errors.Is(got.never, epoch.ErrTxControl) {
		t.Errorf("a COMMIT that may be within quotes is %+v", got)
	}
}
