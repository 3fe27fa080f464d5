// Package workswith keeps the table of docs/handlers.md: each line names a test of
// this module, and the version that it ran with.
package workswith

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table into docs/handlers.md")

// library is one that users have, and the test that uses it.
type library struct{ module, how, dir, test string }

var libraries = []library{
	{"github.com/riverqueue/river", "`client.InsertTx(ctx, pgsink.AsPgxTx(tx), …)`: a job for each message, exactly once, through freezes and kills", "river", "TestEachMessageHasOneRiverJobThroughFreezesAndKills"},
	{"gorm.io/gorm", "`gorm.Open(postgres.New(postgres.Config{Conn: db}))`", "orm", both},
	{"github.com/uptrace/bun", "`bun.NewDB(db, pgdialect.New())`", "orm", both},
	{"github.com/jmoiron/sqlx", "`sqlx.NewDb(db, \"pgx\")`", "orm", both},
	{"entgo.io/ent", "`ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))`, and its Tx and UpdateOneID as savepoints", "orm", "TestEntWritesExactlyOnce"},
	{"github.com/Masterminds/squirrel", "`RunWith(db)`", "orm", both},
	{"github.com/glebarez/go-sqlite", "the driver under `sqlsink`, and `&sqlite.Dialector{Conn: db}` of glebarez/sqlite for gorm; not in one program with modernc.org/sqlite, which registers the same name", "orm", "TestLibrariesWriteExactlyOnceThroughSqlsink"},
	{"github.com/mattn/go-sqlite3", "the driver under `sqlsink`, in WAL mode (`_journal_mode=WAL`)", "sqlitetest/mattn", "TestTheSinkPassesItsSuiteOnMattnsDriver"},
	{"github.com/ncruces/go-sqlite3", "the driver under `sqlsink`, in WAL mode (`_pragma=journal_mode(wal)`); it needs no C compiler", "sqlitetest/ncruces", "TestTheSinkPassesItsSuiteOnNcrucesDriver"},
	{"github.com/doug-martin/goqu/v9", "`goqu.New(\"postgres\", db)`", "orm", both},
	{"github.com/twmb/franz-go/plugin/kprom", "a hook in `GroupClient` and another one in `ReadClient`", "kafka", "TestEachClientHasItsKpromMetrics"},
	{"github.com/twmb/franz-go/plugin/kotel", "its hooks in `ReadClient`: the message's span is in the handler's context", "kafka", "TestHandlerFenceAndCommitAreInTheTraceOfTheMessage"},
	{"github.com/exaring/otelpgx", "`ConnConfig.Tracer` of the pool, and `fenceotel.Sink`: fence, handlers and commit in one span", "kafka", "TestHandlerFenceAndCommitAreInTheTraceOfTheMessage"},
	{"go.opentelemetry.io/otel/exporters/prometheus", "`fenceotel.Register(meter, s)`: each metric has the name that the alerts and the dashboard use", "otel", "TestTheExporterToPrometheusGivesEachMetricItsName"},
	{"github.com/twmb/franz-go/pkg/sr", "`serde.Decode` in the handler, with `consumer.Permanent` for what cannot be decoded", "kafka", "TestWhatCannotBeDecodedGoesToOnFailureAtOnce"},
	{"github.com/pressly/goose/v3", "`migrations.Write(dir, migrations.Goose, …)`", "migrations", tools},
	{"github.com/golang-migrate/migrate/v4", "`migrations.Write(dir, migrations.GolangMigrate, …)`", "migrations", tools},
	{"github.com/jackc/tern/v2", "`migrations.Write(dir, migrations.Tern, …)`", "migrations", "TestPostgreSQLTablesGoThroughMigrationTools"},
	{"ariga.io/atlas", "`migrations.Write(dir, migrations.Atlas, …)`; the test uses Atlas's library", "migrations", tools},
}

// both are two tests, one for each sink.
const both = "TestLibrariesWriteExactlyOnceThroughPgsink, TestLibrariesWriteExactlyOnceThroughSqlsink"

// tools are two tests as well, one for each database.
const tools = "TestPostgreSQLTablesGoThroughMigrationTools, TestSQLiteTablesGoThroughMigrationTools"

const page = "../../../docs/handlers.md"

var table = regexp.MustCompile(`(?s)(<!-- the table: .*? -->\n).*?(<!-- end -->)`)

func TestTheTableSaysWhatIsTestedAndWithWhichVersion(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	lines.WriteString("| library | version | how | test |\n|---|---|---|---|\n")
	for _, l := range libraries {
		version := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(l.module) + ` (v\S+)$`).FindSubmatch(mod) // what is used directly has no comment
		if version == nil {
			t.Fatalf("go.mod does not require %s directly", l.module)
		}
		var file string
		for test := range strings.SplitSeq(l.test, ", ") {
			file = fileOf(t, l.dir, test)
		}
		fmt.Fprintf(&lines, "| `%s` | %s | %s | [`%s`](../internal/contrib/workswith/%s) |\n", l.module, version[1], l.how, l.dir, file)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := table.ReplaceAllString(string(text), "${1}"+strings.ReplaceAll(lines.String(), "$", "$$")+"${2}")
	if want == string(text) && table.Match(text) {
		return
	}
	if !*update {
		t.Fatal("the table is out of date: cd internal/contrib/workswith && go test . -update")
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fileOf returns the file of a test. Two tests of one library are in the same file.
func fileOf(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "func "+name+"(") {
			return filepath.ToSlash(file)
		}
	}
	t.Errorf("%s has no test %s", dir, name)
	return ""
}
