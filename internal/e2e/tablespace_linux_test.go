package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

// Only root may mount a disk that is small. Where nobody may, the test with the
// trigger says the same.
func TestAPostgresTablespaceThatIsFullIsReportedBlamesNoMessageAndNothingIsLost(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true})
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), postgresOn(t, server.Database(t)).granted()
	disk := smallDisk(t, "size=2m", d.serverUser())
	space := "small_" + d.db.Name
	d.exec("create tablespace " + space + " location '" + disk + "'")
	d.exec("alter table effects alter column value set storage external, set tablespace " + space)

	records, values := large(200)                 // 4 MB
	for some := range slices.Chunk(records, 20) { // which a batch has room for
		produce(t, reach(c), some...)
	}
	r := start(t, newSource(t, from(reach(c))), d.sink, blameless(t, d.handle), oneAttempt)
	r.reported(soonEnough, "No space left on device")
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	r.advancedTo(part(group, topic), 200)
	r.stop()
	wantSame(t, d.applied(), values)
}

// serverUser is the user as which the server runs.
func (d *onPostgres) serverUser() int {
	d.Helper()
	var dir string
	if err := d.admin.QueryRow(d.Context(), "show data_directory").Scan(&dir); err != nil {
		d.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		d.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// smallDisk mounts a file system of that size.
func smallDisk(t *testing.T, size string, owner int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk takes root")
	}
	outer, err := os.MkdirTemp("", "e2e-disk-") //nolint:usetesting // the server's user may not enter T.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(outer) })
	if err := os.Chmod(outer, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := filepath.Join(outer, "disk")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(mount) })
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, fmt.Sprintf("%s,mode=0700,uid=%d", size, owner)); err != nil {
		t.Skipf("root may not mount here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mount
}
