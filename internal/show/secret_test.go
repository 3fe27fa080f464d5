package show

import (
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
)

// unreached is a show whose service cannot be reached, and whose errors have its URL.
type unreached struct {
	Settings
	at string
}

func (u *unreached) Flags(fs *flag.FlagSet) { fs.StringVar(&u.at, "at", "", "") }
func (u *unreached) Check() error           { return nil }
func (u *unreached) Introduce() []string    { return nil }
func (u *unreached) Side(*Column) Side      { return nil }
func (u *unreached) Open(context.Context, func(func())) error {
	return errors.New("dial " + u.at + ": no such host as " + strings.ReplaceAll(u.at, "%40", "@"))
}
func (u *unreached) Work(context.Context, *Stage) error { return nil }

func TestNoPasswordIsPrinted(t *testing.T) {
	for at, want := range map[string]int{
		"-at=postgres://bob:p%40ss:w@h/x":                      StatusNot,
		"-at=nats://bob:p%40ss:w@h,nats://eve:p%40ss:w@h":      StatusNot,
		"-at=postgres://bob:p@ss:w/rd?#%zz@127.0.0.1:1/x":      StatusUsage,
		"postgres://bob:p@ss:w/rd@127.0.0.1:1/x":               StatusUsage,
		"postgres://bob:p@ss:w@h/x":                            StatusUsage, // no argument is expected
		"-nonsense=postgres://bob:p@ss:w@h/x":                  StatusUsage,
		"-naive=postgres://bob:p@ss:w@h/x":                     StatusUsage,
		"-at=nats://bob:12ss:w,rd@h":                           StatusUsage,
		"-at=postgres://bob:p%40ss%3aw@h/x?sslmode=nonsense&a": StatusNot,
	} {
		var said strings.Builder
		got := Run(t.Context(), &unreached{Settings: Settings{Name: "drill"}}, []string{at}, &said, &said)
		if got != want || strings.Contains(said.String(), "ss:w") || strings.Contains(said.String(), "rd@") || said.Len() == 0 {
			t.Errorf("%s: status %d, want %d:\n%s", at, got, want, said.String())
		}
	}
}
