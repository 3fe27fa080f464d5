package migrations_test

import (
	"os"
	"testing"

	works "github.com/epochfence/epochfence/workswith/migrations"
)

func TestThePageWritesOneFileForEachMigration(t *testing.T) {
	dir := t.TempDir()
	if err := works.Write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 || files[0].Name() != "00013_epochfence_pgsink_1_fence.sql" {
		t.Errorf("%v, %v", files, err)
	}
}
