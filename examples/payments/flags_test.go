package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/show"
)

func TestWrongFlagsOfPaymentsAreRefusedWithWhatIsWanted(t *testing.T) {
	for args, want := range map[string]string{
		"-nats localhost":                           "is not a URL of NATS, such as nats://127.0.0.1:4222",
		"-nats http://localhost:4222":               "is not a URL of NATS",
		"-nats nats://":                             "is not a URL of NATS",
		"-nats nats://a:4222,,nats://b:4222":        `"" is not a URL of NATS`,
		"-nats ftp://u:secret@a:4222":               "is not a URL of NATS",
		"-nats nats://u:secret@a:port":              "cannot be read",
		"-replicas 0":                               "-replicas is 0; want 1 to 5",
		"-replicas 6":                               "-replicas is 6; want 1 to 5",
		"-replicas 3":                               "name a cluster with -nats",
		"-messages 20":                              "4 partitions need at least 100",
		"-database mysql://u:secret@h/d":            "neither a postgres:// URL nor the path of a SQLite file",
		"-brokers a:9092":                           "not defined",
		"-nats nats://127.0.0.1:4222 -replicas nil": "parse error",
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

func TestGoodFlagsOfPayments(t *testing.T) {
	var out bytes.Buffer
	s, err := parseFlags(strings.Fields("-nats nats://a:1,tls://b:2 -replicas 3 -database postgres://u:p@h/d -messages 500000"), &out)
	if err != nil {
		t.Fatal(err, out.String())
	}
	if s.replicas != 3 || s.Duration != 333*time.Second || s.silentEvery() != 25_000 {
		t.Errorf("settings are %+v", s)
	}
	if s, err = parseFlags(nil, &out); err != nil || s.Duration != 24*time.Second || !s.Naive || s.nats != "" || s.replicas != 1 {
		t.Errorf("without flags: %+v, %v", s, err)
	}
	out.Reset()
	if _, err := parseFlags([]string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-nats") {
		t.Errorf("-help: %v, %s", err, out.String())
	}
}
