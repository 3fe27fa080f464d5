package sqltext_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

// words are those of each statement.
func words(text string, d sqltext.Dialect) (found []string, unsure bool) {
	s := sqltext.New(text, d)
	var one []string
	for {
		switch s.Next() {
		case sqltext.Word:
			one = append(one, string(s.Word()))
			continue
		case sqltext.Other:
			continue
		case sqltext.Semicolon:
			found = append(found, strings.Join(one, " "))
			one = nil
			continue
		case sqltext.End:
		}
		return append(found, strings.Join(one, " ")), s.Unsure
	}
}

func TestTheWordsOfEachStatementAreFoundAndNothingElse(t *testing.T) {
	pg, lite, maria := sqltext.PostgreSQL, sqltext.SQLite, sqltext.MariaDB
	for _, c := range []struct {
		text   string
		d      sqltext.Dialect
		want   []string
		unsure bool
	}{
		{"Commit", pg, []string{"commit"}, false},
		{" \t-- insert\n/* a /* b */ */ COMMIT ; begin", pg, []string{"commit", "begin"}, false},
		{"/* a /* b */ commit */", lite, []string{"commit"}, false},
		{"insert into t values ('commit; rollback', 'it''s; commit')", pg, []string{"insert into t values"}, false},
		{`insert into t values (E'it\'; commit')`, pg, []string{"insert into t values"}, false},
		{`insert into t values ('\'); commit; --')`, pg, []string{"insert into t values", "commit", ""}, true},
		{`insert into t values ('\'); commit; --`, lite, []string{"insert into t values", "commit", ""}, false},
		{"select $$; commit $$, $a$ $$; commit $a$, $1", pg, []string{"select"}, false},
		{"select $a$ ; commit", pg, []string{"select"}, true},
		{`select U&"set\005fconfig"('a')`, pg, []string{`select u set\005fconfig`}, true},
		{`select u & "a", u&b, U&'\0061'`, pg, []string{"select u a u b u"}, false},
		{`select "x; commit", "SET_CONFIG"('a')`, pg, []string{"select x; commit set_config"}, false},
		{"select `x; commit`, [y; commit]", lite, []string{"select x; commit y; commit"}, false},
		{"select 1e5, 'open", pg, []string{"select"}, true},
		{"select 1 /* open", pg, []string{"select"}, true},
		{"-- don't\r's\nCOMMIT", lite, []string{"commit"}, false},
		{"-- a\rCOMMIT", pg, []string{"commit"}, false},
		{"\uFEFFCOMMIT", lite, []string{"commit"}, false},
		{"select $x('); COMMIT; --'", lite, []string{"select"}, true},
		{"select :x, @y, #z, $n::m, ?1 from t", lite, []string{"select from t"}, false},
		{"update übung set größe = 1;;", pg, []string{"update übung set größe", "", ""}, false},
		{`select 'it\'s; commit', "say \"; commit", 'it''s', "a""; b"`, maria, []string{"select"}, false},
		{"select `x; commit`, a[1]; commit", maria, []string{"select x; commit a", "commit"}, false},
		{"# it's\nselect 1 -- it's\n; commit", maria, []string{"select", "commit"}, false},
		{"select 5--1; commit --", maria, []string{"select", "commit"}, false},
		{"/*!40101 commit */; /*M!100300 begin */", maria, []string{"commit", "begin"}, true},
		{"/* ! commit */ select /*+ hint */ 1", maria, []string{"select"}, false},
		{`select '\`, maria, []string{"select"}, true},
		{"", pg, []string{""}, false},
	} {
		if got, unsure := words(c.text, c.d); !slices.Equal(got, c.want) || unsure != c.unsure {
			t.Errorf("%q has %q, unsure %v; want %q, %v", c.text, got, unsure, c.want, c.unsure)
		}
	}
}

func FuzzATextIsReadToItsEnd(f *testing.F) {
	f.Add("select 'a' /* b */ ; $x$ c $x$ \"d\" `e` [f] E'\\'' -- g")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range []sqltext.Dialect{sqltext.PostgreSQL, sqltext.SQLite, sqltext.MariaDB} {
			s := sqltext.New(text, d)
			for n := 0; s.Next() != sqltext.End; n++ {
				if n > len(text) {
					t.Fatalf("%q: more tokens than bytes", text)
				}
			}
		}
	})
}

func TestAScriptIsSplitAtItsSemicolons(t *testing.T) {
	script := "-- a; b\nCREATE TABLE a (b TEXT DEFAULT ';');\n\nINSERT INTO a VALUES (1); -- done;\n"
	want := []string{"-- a; b\nCREATE TABLE a (b TEXT DEFAULT ';')", "INSERT INTO a VALUES (1)"}
	if got := sqltext.Split(script, sqltext.MariaDB); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
