package operate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/text/instant"
)

// This file has how decisions, dead letters and signs of life are rows: the columns and the JSON in
// Row.Body, with texts cut to what every store can keep. Sinks store it, and it changes as package form
// has it. A reader of a newer version has the columns, whose meaning stays.

// maxName limits the bytes of a name or another short text in a row.
const maxName = 500

type entryBody struct {
	form.Version
	Owner string       `json:"owner,omitempty"`
	To    epoch.Offset `json:"to"`
	Trace string       `json:"trace,omitempty"`

	Entry          int64  `json:"entry,omitempty"` // of the outbox
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// encode returns a body as JSON. Of texts, numbers, and times of any year, that cannot fail.
func encode(body any) []byte {
	if f, ok := body.(form.Form); ok {
		text, _ := form.Text(f)
		return text
	}
	text, _ := json.Marshal(body)
	return text
}

// EntryOf returns d as a row to add.
func EntryOf(d Decision) Change {
	return Change{Row: Row{
		Kind: KindEntry, Name: d.Claim.String(), Partition: d.Partition, Epoch: d.Epoch, Offset: d.From,
		State: string(d.Kind), Text: Text(d.Reason, MaxText), By: d.By,
		Body: encode(&entryBody{
			Owner: Text(d.Owner, MaxText), To: d.To, Trace: Text(d.TraceID, maxName), Entry: d.Entry, IdempotencyKey: Text(d.IdempotencyKey, MaxText),
		}),
	}}
}

// DecisionOf returns the decision of a row of [KindEntry], also with an error: as much as can be read.
func DecisionOf(r Row) (Decision, error) {
	b := entryBody{To: -1}
	err := form.Parse(r.Body, &b)
	claim, broken := epoch.ParseClaimID(r.Name)
	if err = errors.Join(err, broken); err != nil {
		err = fmt.Errorf("entry %d of the audit log: %w", r.ID, err)
	}
	return Decision{
		ID: r.ID, At: r.At, Role: r.Role, Kind: DecisionKind(r.State), Partition: r.Partition, Epoch: r.Epoch, Claim: claim, Owner: b.Owner,
		From: r.Offset, To: b.To, Reason: r.Text, By: r.By, TraceID: b.Trace, Entry: b.Entry, IdempotencyKey: b.IdempotencyKey,
	}, err
}

type letterBody struct {
	form.Kept
	Time        instant.JSON `json:"time,omitzero"` // the message's, as the mark
	Mark        epoch.Mark   `json:"mark,omitempty"`
	Request     int64        `json:"request,omitempty"`
	RequestedAt instant.JSON `json:"requested_at,omitzero"` // of the last request, once another state has come
	ReplayError string       `json:"replay_error,omitempty"`
	FailedAt    instant.JSON `json:"failed_at,omitzero"` // of the last replay that failed, as above
	Deferred    int          `json:"deferred,omitempty"` // how often
	DelayMS     int64        `json:"delay_ms,omitempty"` // from the change to StateDeferred until it is due
}

// Delay returns how long after its last change a dead letter in [StateDeferred] is due, and 0 for all other rows.
func (r Row) Delay() time.Duration {
	if r.Kind != KindLetter || r.State != StateDeferred {
		return 0
	}
	var b letterBody
	_ = form.Parse(r.Body, &b) // as much as can be read
	return time.Duration(b.DelayMS) * time.Millisecond
}

// IsWanted reports whether the owner of the partition has to replay the dead letter at a time of the sink's clock.
func (r Row) IsWanted(now time.Time) bool {
	return r.State == StateRequested || r.State == StateDeferred && !now.Before(r.Changed.Add(r.Delay()))
}

// newLetter returns a message that was not applied, as a row to add.
func newLetter(m epoch.Message, e epoch.Epoch, cause error) Change {
	return Change{Row: Row{
		Kind: KindLetter, Partition: m.Partition, Epoch: e, Offset: m.Offset, Text: ErrorText(cause),
		Body: encode(&letterBody{Time: instant.JSON{Time: m.Time}, Mark: m.Mark}), Key: m.Key, Value: m.Value, Headers: encodeHeaders(m.Headers),
	}}
}

// DeadLetterOf returns the dead letter of a row of [KindLetter], with as much of its content as the row has.
func DeadLetterOf(r Row) (DeadLetter, error) {
	l, _, err := letterOf(r)
	return l, err
}

// letterOf returns the dead letter of a row, with as much of its content as the row has.
func letterOf(r Row) (DeadLetter, letterBody, error) {
	var b letterBody
	broken := form.Parse(r.Body, &b)
	l := DeadLetter{
		ID: r.ID, Epoch: r.Epoch, Error: r.Text, At: r.At,
		Message: epoch.Message{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value},
		Request: b.Request, Requested: r.State == StateRequested, RequestedBy: r.By, RequestedAt: b.RequestedAt.Time,
		ReplayError: b.ReplayError, ReplayFailedAt: b.FailedAt.Time, Deferred: b.Deferred,
	}
	switch r.State {
	case StateDeferred:
		if l.Due = r.Changed.Add(r.Delay()); l.ReplayError != "" { // a replay that failed has deferred it
			l.ReplayFailedAt = r.Changed
		}
	case StateRequested:
		l.RequestedAt = r.Changed
	case StateFailed:
		l.ReplayFailedAt = r.Changed
	}
	l.Message.Time, l.Message.Mark = b.Time.Time, b.Mark
	var err error
	l.Message.Headers, err = decodeHeaders(r.Headers)
	if err = errors.Join(broken, err); err != nil {
		err = fmt.Errorf("dead letter %d: %w", r.ID, err)
	}
	return l, b, err
}

// revised returns the change of a dead letter's row that makes it l, in this state.
func revised(r Row, l DeadLetter, b letterBody, state string) Change {
	b.Request, b.ReplayError = l.Request, l.ReplayError
	b.RequestedAt, b.FailedAt = instant.JSON{Time: l.RequestedAt}, instant.JSON{Time: l.ReplayFailedAt}
	r.State, r.By, r.Body = state, l.RequestedBy, encode(&b)
	r.Key, r.Value, r.Headers = nil, nil, nil
	return Change{Row: r}
}

type header struct {
	Key      *string `json:"key,omitempty"`
	KeyBytes []byte  `json:"key_bytes,omitempty"`
	Value    []byte  `json:"value"`
}

// encodeHeaders returns a JSON array with an object for each header: its key, and its value in
// base64. If a key is not UTF-8, which JSON cannot hold, key_bytes has it in base64.
func encodeHeaders(hs []epoch.Header) []byte {
	if len(hs) == 0 {
		return nil
	}
	headers := make([]header, 0, len(hs))
	for _, h := range hs {
		if utf8.ValidString(h.Key) {
			headers = append(headers, header{Key: &h.Key, Value: h.Value})
		} else {
			headers = append(headers, header{KeyBytes: []byte(h.Key), Value: h.Value})
		}
	}
	return encode(headers)
}

func decodeHeaders(text []byte) (hs []epoch.Header, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	var headers []header
	if err := json.Unmarshal(text, &headers); err != nil {
		return nil, err
	}
	for _, h := range headers {
		key := string(h.KeyBytes)
		if h.Key != nil {
			key = *h.Key
		}
		hs = append(hs, epoch.Header{Key: key, Value: h.Value})
	}
	return hs, nil
}

type processBody struct {
	form.Version
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Release string `json:"version"`
	EveryMS int64  `json:"every_ms"`
}

// maxProblems limits the bytes of the problems of a process.
const maxProblems = 2 * MaxText

// signOf returns the sign of life of p as a row.
func signOf(p Process) Change {
	return Change{Row: Row{
		Kind: KindProcess, Name: Text(p.Run, maxName), Partition: epoch.Partition{Group: Text(p.Group, maxName)},
		By: Text(p.Name, maxName), Text: Text(p.Problems, maxProblems),
		Body: encode(&processBody{Host: Text(p.Host, maxName), PID: p.PID, Release: Text(p.Version, maxName), EveryMS: p.Every.Milliseconds()}),
	}}
}

// ProcessOf returns the process of a row of [KindProcess], also with an error, which is one of its Problems then: as
// much as can be read.
func ProcessOf(r Row) (Process, error) {
	var b processBody
	err := form.Parse(r.Body, &b)
	if err != nil {
		err = fmt.Errorf("the sign of life of %s: %w", r.Name, err)
		r.Text = strings.TrimSpace(r.Text + "\n" + err.Error())
		b.EveryMS = cmp.Or(b.EveryMS, time.Minute.Milliseconds()) // unknown, and no reason to take it for dead
	}
	return Process{
		Run: r.Name, Group: r.Partition.Group, Name: r.By, Host: b.Host, PID: b.PID, Version: b.Release, Problems: r.Text,
		Every: time.Duration(b.EveryMS) * time.Millisecond, Since: r.At, Seen: r.Changed, Now: r.Now,
	}, err
}

// named returns kinds as States of a [RowQuery].
func named(kinds ...DecisionKind) (states []string) {
	for _, k := range kinds {
		states = append(states, string(k))
	}
	return states
}

// MaxText is the limit of the bytes that a sink keeps of an error, or of the reason of a [Decision].
const MaxText = 2000

// Text returns s as every store can keep it: valid UTF-8 without NUL bytes, cut to limit bytes.
func Text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// ErrorText returns the text of an error as sinks keep it, of at most [MaxText] bytes. A text that was cut
// ends with the number of its bytes.
func ErrorText(err error) string {
	if err == nil {
		return "unknown"
	}
	text := fmt.Sprint(err) // whose methods may panic
	if len(text) <= MaxText {
		return Text(text, MaxText)
	}
	end := fmt.Sprintf("… (%d bytes)", len(text))
	return Text(text, MaxText-len(end)) + end
}
