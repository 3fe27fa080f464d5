package operate

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
)

// These bytes are frozen: processes of other versions read and write them. See package form.
func TestTheStoredFormOfVersion1OfEachBody(t *testing.T) {
	at := time.Date(2026, 11, 29, 14, 0, 0, 5000, time.UTC)
	letter := newLetter(epoch.Message{Offset: 7, Mark: 3, Time: at, Headers: []epoch.Header{{Key: "a", Value: []byte("b")}, {Key: "\xff"}}}, 8, errors.New("poison"))
	l, b, err := letterOf(letter.Row)
	if err != nil {
		t.Fatal(err)
	}
	l.Request, l.RequestedAt, l.ReplayError, l.ReplayFailedAt = 2, at, "again", at
	entry := OutboxEntry{Scope: "account/17", Method: http.MethodPost, Header: http.Header{"A": {"b"}}}.Row()
	decision := EntryOf(Decision{Owner: "host/1", To: 9, TraceID: "4bf9", Entry: 11, IdempotencyKey: "i"})
	for _, c := range []struct {
		what string
		got  []byte
		want string
	}{
		{"an entry of the audit log", decision.Body, `{"owner":"host/1","to":9,"trace":"4bf9","entry":11,"idempotency_key":"i"}`},
		{"a dead letter", letter.Body, `{"time":"2026-11-29T14:00:00.000005Z","mark":3}`},
		{"one that was replayed", revised(letter.Row, l, b, StateFailed).Body, `{"time":"2026-11-29T14:00:00.000005Z","mark":3,"request":2,` +
			`"requested_at":"2026-11-29T14:00:00.000005Z","replay_error":"again","failed_at":"2026-11-29T14:00:00.000005Z"}`},
		{"one that is deferred", encode(&letterBody{Deferred: 2, DelayMS: 60_000}), `{"deferred":2,"delay_ms":60000}`},
		{"its headers", letter.Headers, `[{"key":"a","value":"Yg=="},{"key_bytes":"/w==","value":null}]`},
		{"a sign of life", signOf(Process{Host: "host", PID: 1, Version: "v1.2.3", Every: time.Minute}).Body, `{"host":"host","pid":1,"version":"v1.2.3","every_ms":60000}`},
		{"an entry of the outbox", entry.Body, `{"scope":"account/17","method":"POST"}`},
		{"its headers", entry.Headers, `{"A":["b"]}`},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
		}
	}
}

// The columns of a row mean the same in every version.
func TestARowWithABodyOfANewerVersionShowsItsColumns(t *testing.T) {
	r := Row{ID: 5, Name: epoch.NewClaimID().String(), Text: "text", By: "ana", Body: []byte(`{"v":2,"to":[9],"owner":{},"scope":1,"time":{},"host":7}`)}
	d, err := DecisionOf(r)
	if !errors.Is(err, form.ErrNewer) || d.ID != 5 || d.By != "ana" || d.Reason != "text" {
		t.Errorf("%+v, %v", d, err)
	}
	l, err := DeadLetterOf(r)
	if !errors.Is(err, form.ErrNewer) || l.ID != 5 || l.Error != "text" {
		t.Errorf("%+v, %v", l, err)
	}
	e, err := OutboxEntryOf(r)
	if !errors.Is(err, form.ErrNewer) || e.ID != 5 || e.Key != "ana" {
		t.Errorf("%+v, %v", e, err)
	}
	p, err := ProcessOf(r)
	if !errors.Is(err, form.ErrNewer) || p.Name != "ana" || p.Problems != "text\n"+err.Error() {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestAnOperatorsRequestKeepsUnknownFieldsOfADeadLetter(t *testing.T) {
	r := Row{ID: 5, Body: []byte(`{"mark":3,"source":{"of":1}}`)}
	l, b, err := letterOf(r)
	if err != nil {
		t.Fatal(err)
	}
	l.Request++
	if got, want := string(revised(r, l, b, StateRequested).Body), `{"mark":3,"request":1,"source":{"of":1}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
