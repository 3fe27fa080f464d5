package stock

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

func TestWrongFlagsAreRefusedWithWhatIsWanted(t *testing.T) {
	for args, want := range map[string]string{
		"-workers -1":                    "-workers is -1; want 2 to 64",
		"-workers 1":                     "-workers is 1; want 2 to 64",
		"-workers 1000000":               "-workers is 1000000; want 2 to 64",
		"-partitions 0":                  "-partitions is 0; want 1 to 1000",
		"-partitions 5000":               "-partitions is 5000; want 1 to 1000",
		"-messages -5":                   "-messages is -5; want 400 to 20000000",
		"-messages 9000000000":           "-messages is 9000000000; want 400 to 20000000",
		"-messages 99999999999999999999": "value out of range",
		"-messages many":                 "parse error",
		"-messages 99":                   "-messages is 99; want 400 to 20000000",
		"-duration -1s":                  "-duration is -1s; want 0, or 1s and more",
		"-duration 1ms":                  "-duration is 1ms; want 0, or 1s and more",
		"-duration 10":                   "parse error",
		"-seed -1":                       "invalid value",
		"-brokers localhost":             `"localhost" is not host:port, such as 127.0.0.1:9092`,
		"-brokers :9092":                 `":9092" is not host:port`,
		"-brokers a:9092,,b:9092":        `"" is not host:port`,
		"-database mysql://u:secret@h/d": "-database is no postgres:// URL",
		"-http 8080":                     "is not host:port, such as :8080",
		"go":                             `unexpected argument "go"`,
		"-frozen":                        "not defined",
	} {
		var out bytes.Buffer
		err := show.Parse(newInventory(), strings.Fields(args), &out)
		if !errors.Is(err, show.ErrUsage) || !strings.Contains(out.String(), want) {
			t.Errorf("%s: error %v, output %q; want %q", args, err, out.String(), want)
		}
		if strings.Contains(out.String(), "secret") {
			t.Errorf("%s: the password is printed: %q", args, out.String())
		}
	}
}

func TestGoodFlags(t *testing.T) {
	var out bytes.Buffer
	v := newInventory()
	args := "-brokers a:1,b:2 -database postgres://u:p@h/d -messages 1000000 -partitions 8 -naive=false"
	if err := show.Parse(v, strings.Fields(args), &out); err != nil {
		t.Fatal(err, out.String())
	}
	if v.brokers != "a:1,b:2" || v.Naive || v.session != kafkaMinSession {
		t.Errorf("settings are %+v", v)
	}
	if v.Duration != 125*time.Second {
		t.Errorf("a million messages last %v", v.Duration)
	}
	v = newInventory()
	if err := show.Parse(v, nil, &out); err != nil || v.Duration != 24*time.Second || !v.Naive {
		t.Errorf("without flags: %+v, %v", v, err)
	}
}

func TestHelpIsNoError(t *testing.T) {
	var out bytes.Buffer
	if err := show.Parse(newInventory(), []string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	for _, name := range []string{"brokers", "database", "workers", "partitions", "messages", "duration", "seed", "naive", "http"} {
		if !strings.Contains(out.String(), "-"+name+" ") && !strings.Contains(out.String(), "-"+name+"\n") {
			t.Errorf("-%s is not explained in\n%s", name, out.String())
		}
	}
}
