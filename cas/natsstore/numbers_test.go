package natsstore_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestWhichNumbersGrow(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	kv := func(t testing.TB) jetstream.KeyValue {
		kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: bucket})
		if err != nil {
			t.Fatal(err)
		}
		return kv
	}
	written := 0
	tokentest.Show(t, tokentest.Server{
		Name: "NATS",
		Write: func(t testing.TB) {
			written++
			if _, err := kv(t).Put(t.Context(), "lock", []byte(fmt.Sprint(written))); err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if err := kv(t).Purge(t.Context(), "lock"); err != nil {
				t.Fatal(err)
			}
		},
		Backup: func(t testing.TB) func() {
			kv(t)
			b, err := natstest.TakeBackup(t.Context(), js.Conn(), "KV_"+bucket)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
					t.Fatal(err)
				}
				if err := b.Restore(t.Context(), js.Conn()); err != nil {
					t.Fatal(err)
				}
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"revision of the key": func(t testing.TB) int64 {
				e, err := kv(t).Get(t.Context(), "lock")
				if err != nil {
					t.Fatal(err)
				}
				return int64(e.Revision())
			},
		},
	})
}
