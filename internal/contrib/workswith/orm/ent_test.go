//go:build !entclient

package orm

import (
	command "os/exec"
	"testing"

	"entgo.io/ent/entc"
	"entgo.io/ent/entc/gen"
)

// The generated client is 5,000 lines, so it is made here, below testdata: patterns such as ./... do not
// match it, and the go command that runs this test does not compile it meanwhile.
func TestEntWritesExactlyOnce(t *testing.T) {
	at := &gen.Config{Target: "testdata/ent", Package: "github.com/epochfence/epochfence/internal/contrib/workswith/orm/testdata/ent"}
	if err := entc.Generate("./ent/schema", at); err != nil {
		t.Fatal(err)
	}
	out, err := command.CommandContext(t.Context(), "go", "test", "-tags", "entclient", "-count", "1", ".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
