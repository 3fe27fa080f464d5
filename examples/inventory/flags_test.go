package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

func TestWrongFlagsAreRefusedWithWhatIsWanted(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken.db")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "half.db.baseline"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"-workers -1":                          "-workers is -1; want 2 to 64",
		"-workers 0":                           "-workers is 0; want 2 to 64",
		"-workers 1":                           "-workers is 1; want 2 to 64",
		"-workers 1000000":                     "-workers is 1000000; want 2 to 64",
		"-partitions 0":                        "-partitions is 0; want 1 to 1000",
		"-partitions -4":                       "-partitions is -4; want 1 to 1000",
		"-partitions 5000":                     "-partitions is 5000; want 1 to 1000",
		"-messages 0":                          "-messages is 0; want 1 to 20000000",
		"-messages -5":                         "-messages is -5; want 1 to 20000000",
		"-messages 9000000000":                 "-messages is 9000000000; want 1 to 20000000",
		"-messages 99999999999999999999":       "value out of range",
		"-messages many":                       "parse error",
		"-messages 99":                         "4 partitions need at least 100",
		"-duration -1s":                        "-duration is -1s; want 0, or 1s to 24h",
		"-duration 1ms":                        "-duration is 1ms; want 0, or 1s to 24h",
		"-duration 9000h":                      "want 0, or 1s to 24h",
		"-duration 10":                         "parse error",
		"-seed -1":                             "invalid value",
		"-brokers localhost":                   `"localhost" is not host:port, such as 127.0.0.1:9092`,
		"-brokers :9092":                       `":9092" is not host:port`,
		"-brokers a:9092,,b:9092":              `"" is not host:port`,
		"-brokers a:0":                         "the port is not a number from 1 to 65535",
		"-brokers a:kafka":                     "the port is not a number from 1 to 65535",
		"-database mysql://u:secret@h/d":       "neither a postgres:// URL nor the path of a SQLite file",
		"-database " + taken:                   taken + " exists",
		"-database " + dir + "/half.db":        "half.db.baseline exists",
		"-database " + taken + "/below/it.db":  "-database:",
		"-database " + dir + "/no/such/dir/db": "no such file or directory",
		"go":                                   `unexpected argument "go"`,
		"-frozen":                              "not defined",
	} {
		var out bytes.Buffer
		_, err := parseFlags(strings.Fields(args), &out)
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
	s, err := parseFlags(strings.Fields("-brokers a:1,b:2 -database postgres://u:p@h/d -messages 1000000 -partitions 8 -naive=false"), &out)
	if err != nil {
		t.Fatal(err, out.String())
	}
	if len(s.brokers) != 2 || s.brokers[1] != "b:2" || s.Naive || s.session != kafkaMinSession {
		t.Errorf("settings are %+v", s)
	}
	if s.Duration != 125*time.Second {
		t.Errorf("a million messages last %v", s.Duration)
	}
	if s, err = parseFlags(nil, &out); err != nil || s.Duration != 24*time.Second || !s.Naive {
		t.Errorf("without flags: %+v, %v", s, err)
	}
}

func TestHelpIsNoError(t *testing.T) {
	var out bytes.Buffer
	if _, err := parseFlags([]string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	for _, name := range []string{"brokers", "database", "workers", "partitions", "messages", "duration", "seed", "naive", "keep"} {
		if !strings.Contains(out.String(), "-"+name+" ") && !strings.Contains(out.String(), "-"+name+"\n") {
			t.Errorf("-%s is not explained in\n%s", name, out.String())
		}
	}
}
