package pgsink

import "testing"

func TestAStatementIsKnownByItsWords(t *testing.T) {
	const kept = apart | lasting
	for text, want := range map[string]class{
		"insert into t values ($1)":                            0,
		"insert into t values ('commit; set x = 1'); select 1": 0,
		"update t set local = 1 where temp = 2":                0,
		"insert into temp (a) values (1)":                      0,
		"with a as (select 1) select * from a":                 0,
		"lock table t in share mode":                           0,
		"notify news, 'x'":                                     0,
		"call p($1)":                                           0,
		"select pg_advisory_xact_lock(1)":                      0,
		"copy t to '/tmp/x'":                                   0,
		"":                                                     0,
		"commit":                                               controls,
		" /* a */ Commit And Chain":                            controls,
		"insert into t values (1); commit":                     controls,
		"begin":                                                controls,
		"start transaction":                                    controls,
		"end":                                                  controls,
		"abort":                                                controls,
		"rollback":                                             controls,
		"rollback prepared 'x'":                                controls,
		"prepare transaction 'x'":                              controls,
		"select 1; prepare transaction 'x'":                    controls,
		"copy t from stdin":                                    copies,
		"copy t (a) to stdout":                                 copies,
		"savepoint a":                                          apart,
		"rollback to a":                                        apart,
		"rollback transaction to savepoint a":                  apart,
		"release a":                                            apart,
		"set local search_path = x":                            apart,
		"SET CONSTRAINTS ALL DEFERRED":                         apart,
		"set transaction read only":                            apart,
		"declare c cursor for select 1":                        apart,
		"declare c cursor with hold for select 1":              kept,
		"select set_config('app.tenant', $1, true)":            apart,
		"select set_config('a', $1, true), pg_catalog.set_config('b', $2, true)": apart,
		"select set_config('a', $1, false)":                                      kept,
		"select set_config('a', $1, false), set_config('b', $2, true)":           kept,
		`select "set_config"('a', $1, $2)`:                                       kept,
		"set search_path = x":                                                    kept,
		"set role x":                                                             kept,
		"set session characteristics as transaction read only":                   kept,
		"reset all":                   kept,
		"listen news":                 kept,
		"prepare p as select 1":       kept,
		"create temp table x (a int)": kept,
		"create local temporary table x (a int) on commit drop": apart,
		"create or replace temp view x as select 1":             kept,
		"create table pg_temp.x (a int)":                        kept,
		"select * into temporary x from t":                      kept,
		"select pg_advisory_lock(1)":                            kept,
		"deallocate all":                                        kept | deallocates,
		"discard all":                                           kept | deallocates,
		"do $$ begin perform 1; end $$":                         kept | deallocates,
		`select '\'; commit; --'`:                               kept | controls | unsure,
		"select 'open":                                          unsure | kept,
	} {
		if got := classify(text); got != want {
			t.Errorf("%q is %05b; want %05b", text, got, want)
		}
	}
}
