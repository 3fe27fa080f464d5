package secret

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAPasswordIsTakenOutInEachSpelling(t *testing.T) {
	const at = "postgres://bob:p%40ss%2Fw@h/x"
	for text, want := range map[string]string{
		"dial postgres://bob:p%40ss%2fw@h": "dial postgres://bob:…@h",
		`parse "p@ss/w"`:                   `parse "…"`,
		"p%40ss%2Fw and %70@ss/w":          "… and …",
		"dial redis://eve:other@h":         "dial redis://eve:…@h",
		"nothing of it":                    "nothing of it",
	} {
		if got := Error(errors.New(text), at).Error(); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{"a host ab:ab@h": "a host ab:…@h", "an absent host": "an absent host"} {
		if got := Text(text, "nats://u:ab@h"); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
	if err := Error(io.EOF, at); err != io.EOF {
		t.Errorf("an error without a password is %v", err)
	}
	if err := Error(nil, at); err != nil {
		t.Errorf("no error is %v", err)
	}
	var out strings.Builder
	if n, err := Writer(&out, at).Write([]byte("p@ss/w!")); n != 7 || err != nil || out.String() != "…!" {
		t.Errorf("%d, %v: %q", n, err, out.String())
	}
}

func TestAURLWhosePasswordEndsEarlyIsRefusedAndNotPrinted(t *testing.T) {
	for at, wrong := range map[string]bool{
		"postgres://bob:p@ss:w/rd?#%zz@127.0.0.1:1/x": true, "postgres://bob:p@ss:w/rd@127.0.0.1:1/x": true, "postgres://bob:12?rd@127.0.0.1:1/x": true,
		"postgres://bob:p@ss:w#rd@127.0.0.1:1/x": true, "nats://bob:p,rd@h": true, "nats://bob:12,rd@h": true, "nats://bob:12/rd@h": true,
		"postgres://bob:p@ss:12?rd@h/x": true, "postgres://bob:p@ss:12#rd": true, "redis://bob:50%rd@h": true, "redis://bob:p@12,rd:x@h": false,
		"postgres://a:b@h1:5432,h2:5432/x?options=c@d": false, "postgres://h:5432/x": false, "postgres:///x?host=/run": false, "postgres://a:p%40@[::1]:1/x": false,
		"etcd://h1:1,h2:2": false, "kubernetes://default": false, "nats://token@h": false, "nats://a:b@h1:4222,tls://c:d@h2": false,
		"postgres://bob:p@ss:w:rd@127.0.0.1:1/x": false, // the whole of it is the password
	} {
		if err := Check(at); (err != nil) != wrong {
			t.Errorf("%s: %v", at, err)
		} else if err != nil && (strings.Contains(err.Error(), "bob") || strings.Contains(err.Error(), "rd@")) {
			t.Errorf("%s: %v", at, err)
		}
	}
}
