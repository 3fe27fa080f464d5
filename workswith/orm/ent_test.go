//go:build !entclient

package orm_test

import (
	command "os/exec"
	"testing"

	"entgo.io/ent/entc"
	"entgo.io/ent/entc/gen"
)

// The generated client is 5,000 lines, so it is made here.
func TestEntWritesExactlyOnce(t *testing.T) {
	if err := entc.Generate("./ent/schema", &gen.Config{}); err != nil {
		t.Fatal(err)
	}
	out, err := command.CommandContext(t.Context(), "go", "test", "-tags", "entclient", "-count", "1", ".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
