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
		"-nats localhost":                           "-nats: want URLs such as nats://127.0.0.1:4222",
		"-nats http://localhost:4222":               "-nats: want URLs",
		"-nats nats://":                             "-nats: want URLs",
		"-nats nats://a:4222,,nats://b:4222":        "-nats: want URLs",
		"-nats ftp://u:secret@a:4222":               "-nats: want URLs",
		"-nats nats://u:secret@a:port":              "-nats: want URLs",
		"-replicas 0":                               "-replicas is 0; want 1 to 5",
		"-replicas 6":                               "-replicas is 6; want 1 to 5",
		"-replicas 3":                               "name a cluster with -nats",
		"-messages 20":                              "-messages is 20; want 400 to 20000000",
		"-database mysql://u:secret@h/d":            "-database is no postgres:// URL",
		"-brokers a:9092":                           "not defined",
		"-nats nats://127.0.0.1:4222 -replicas nil": "parse error",
	} {
		var out bytes.Buffer
		err := show.Parse(newPayments(), strings.Fields(args), &out)
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
	p := newPayments()
	args := "-nats nats://a:1,tls://b:2 -replicas 3 -database postgres://u:p@h/d -messages 500000"
	if err := show.Parse(p, strings.Fields(args), &out); err != nil {
		t.Fatal(err, out.String())
	}
	if p.replicas != 3 || p.Duration != 333*time.Second || p.silentEvery() != 25_000 || p.Every != 10*time.Second {
		t.Errorf("settings are %+v", p)
	}
	p = newPayments()
	if err := show.Parse(p, nil, &out); err != nil || p.Duration != 24*time.Second || !p.Naive || p.nats != "" || p.replicas != 1 || p.Every != 4*time.Second {
		t.Errorf("without flags: %+v, %v", p, err)
	}
	out.Reset()
	if err := show.Parse(newPayments(), []string{"-help"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-nats") {
		t.Errorf("-help: %v, %s", err, out.String())
	}
}
