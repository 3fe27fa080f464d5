package rebuild

import (
	"bytes"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/localnats"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/suites/showtest"
)

func TestAStoreOfOthersHasTheLeasesAndIsLeftAsItWas(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	for name, start := range map[string]func(t *testing.T) string{
		"nats": func(t *testing.T) string {
			url, stop, err := localnats.Start(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
			return url + "/leases"
		},
		"postgres": func(t *testing.T) string { return pgtest.Start(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			n, url := short(), start(t)
			showtest.Exact(t, n, "-ticks", "2", "-freezes", "1", "-kills", "0", "-naive=false", "-lease", url)
			s, closer, err := n.stores.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer closer()
			for item, err := range s.List(t.Context(), "") {
				t.Errorf("%s is left, %v", item.Key, err)
			}
		})
	}
}

func TestAStoreThatIsNotThereIsSaidClearly(t *testing.T) {
	var out bytes.Buffer
	if status := show.Run(t.Context(), New(), []string{"-lease", "nats://host:1"}, &out, &out); status != show.StatusNot || !strings.Contains(out.String(), "-lease: name the bucket, as in nats://HOST:PORT/BUCKET") {
		t.Errorf("status %d: %s", status, out.String())
	}
}
