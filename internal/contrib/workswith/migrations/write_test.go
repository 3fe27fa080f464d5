package migrations

import (
	"os"
	"slices"
	"testing"
)

func TestThePageWritesOneFileForEachMigration(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	want := []string{
		"00013_epochfence_pgsink_1_fence.sql", "00014_epochfence_pgsink_2_ledger.sql", "00015_epochfence_pgsink_3_operate.sql",
		"00016_epochfence_pgsink_4_outside.sql", "00017_epochfence_pgsink_5_outbox.sql", "00018_epochfence_pgsink_6_items.sql",
		"00019_epochfence_pgsink_7_outbox_offset.sql", "00020_epochfence_pgsink_8_observe.sql",
		"00021_epochfence_pgsink_9_retry.sql", "00022_epochfence_pgsink_10_peers.sql",
		"00023_epochfence_pgsink_11_suspected.sql",
	}
	if !slices.Equal(names, want) {
		t.Errorf("%q; want %q", names, want)
	}
}
