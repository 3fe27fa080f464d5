package sqltext_test

import (
	"testing"

	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

func TestATextOnlyReadsIfThatIsCertain(t *testing.T) {
	reads := sqltext.Touch{Reads: true}
	for text, want := range map[string]sqltext.Touch{
		`select 1`:                                     reads,
		`SELECT * FROM "t" WHERE id IN ($1, $2)`:       reads,
		`select count(*), lower("a".b) from t`:         reads,
		`select id from t order by (a) for update`:     reads,
		`select id from t for no key update of t`:      reads,
		`select pg_catalog.lower($1)`:                  reads,
		`with a as (select 1) select * from a`:         reads,
		`values (1), (2)`:                              reads,
		`select 'insert into t', $$delete$$ -- update`: reads,
		`select 1; select 2;`:                          reads,
		``:                                             reads,

		`insert into t values (1)`:                              {},
		`select 1; delete from t`:                               {},
		`select * into t2 from t`:                               {},
		`with a as (delete from t returning *) select * from a`: {},
		`with a as (select 1) update t set n = 1`:               {},
		`explain analyze select 1`:                              {},
		`select app.lower($1)`:                                  {},
		`select take_from_stock($1)`:                            {},
		`select "take"($1)`:                                     {},
		`select nextval('s')`:                                   {},
		`select * from "t" where take ($1)`:                     {},
		`create table t ()`:                                     {},
		`select 'no end`:                                        {},

		`savepoint a`:                           {Sets: true},
		`SAVEPOINT a; insert into t values (1)`: {Sets: true},
		`rollback to savepoint a`:               {Back: true},
		`ROLLBACK WORK TO a`:                    {Back: true},
		`release a`:                             {},
	} {
		if got := sqltext.TouchOf(text, sqltext.PostgreSQL); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	for text, want := range map[string]bool{
		`SELECT my_function(1)`:                              true, // which cannot write in SQLite
		`WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a`: false,
		`REPLACE INTO t VALUES (1)`:                          false,
		`PRAGMA user_version`:                                false,
		`EXPLAIN QUERY PLAN SELECT 1`:                        true,
	} {
		if got := sqltext.TouchOf(text, sqltext.SQLite); got.Reads != want {
			t.Errorf("SQLite: %s: %+v, want %v", text, got, want)
		}
	}
}
