package cassink

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
)

// These bytes are frozen: processes of other versions read and write them. See package form.
func TestTheStoredFormOfVersion1OfEachItem(t *testing.T) {
	t.Parallel()
	p := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	at := time.Date(2026, 11, 29, 14, 0, 0, 5000, time.UTC)
	claim, err := epoch.ParseClaimID("00112233-4455-6677-8899-aabbccddeeff")
	if err != nil {
		t.Fatal(err)
	}
	row := operate.Row{Kind: operate.KindLetter, ID: 7, Name: "name", Partition: p, Epoch: 8, Offset: 100, State: "requested", Text: "text", By: "ana", At: at, Changed: at, Role: "app", Revision: 2, Body: []byte(`{"to":1}`), Key: []byte("k"), Headers: []byte("[]")}
	const rowText = `"kind":"dead-letter","id":7,"name":"name","partition":{"Group":"billing","Topic":"orders","Number":3},"epoch":8,"offset":100,"state":"requested",` +
		`"text":"text","by":"ana","at":"2026-11-29T14:00:00.000005Z","changed":"2026-11-29T14:00:00.000005Z","role":"app","revision":2,"body":{"to":1},"key":"aw==","headers":"W10="`
	fence := epoch.Fence{
		Origin:     epoch.Origin{Partition: p, Log: "log", Source: "source"},
		Generation: 4, Owner: "host/1", Epoch: 8, Claim: claim, Next: 100, Mark: 7, Applied: true, SetUnder: 5,
		Pause: epoch.PauseState{Mode: epoch.Paused, By: "ana", Reason: "upgrade", Since: at},
	}
	const fenceText = `"Partition":{"Group":"billing","Topic":"orders","Number":3},"Log":"log","Source":"source","Generation":4,"Owner":"host/1","Epoch":8,` +
		`"Claim":"00112233-4455-6677-8899-aabbccddeeff","Next":100,"Mark":7,"Applied":true,"SetUnder":5,` +
		`"Pause":{"Mode":"paused","By":"ana","Reason":"upgrade","Since":"2026-11-29T14:00:00.000005Z"}`
	all := lists{Dead: []guard.DeadLetter{{ID: 6, Era: 5, Offset: 90}}, Entries: []int64{11}, Replayed: []int64{4}}
	const allText = `"Dead":[{"ID":6,"Era":5,"Offset":90}],"Entries":[11],"Replayed":[4]`
	for text, want := range map[string]form.Form{
		`{` + fenceText + `,"ClaimedAt":"2026-11-29T14:00:00.000005Z","AdvancedAt":"2026-11-29T14:00:00.000005Z","Act":"00112233","LastID":9,"Pending":[6],"LastEntry":11,"Joined":{` + allText + `},"Left":[3],"Upon":2}`: &record{
			Fence: fence, ClaimedAt: at, AdvancedAt: at, Act: "00112233", LastID: 9, Pending: []int64{6}, LastEntry: 11, riding: riding{Joined: all, Left: []int64{3}, Upon: 2},
		},
		`{"Fences":{"3":{` + fenceText + `}}}`:                                                      &beginning{Fences: map[int32]epoch.Fence{3: fence}},
		`{"Number":2,` + allText + `}`:                                                              &kept{Number: 2, lists: all},
		`{"Entries":[{` + rowText + `},{` + rowText + `,"of_fence":true,"after":6}]}`:               &auditLog{Entries: []logged{{Row: row}, {Row: row, OfFence: true, After: 6}}},
		`{` + rowText + `,"pending":true,"parts":2,"under":"00112233-4455-6677-8899-aabbccddeeff"}`: &letter{Row: row, Pending: true, Parts: 2, Under: claim},
		`{` + rowText + `}`: &life{Row: row},
		`{"Acts":5,"Replays":[{"Partition":{"Group":"billing","Topic":"orders","Number":3},"ID":6}],"Retries":[{"Partition":{"Group":"billing","Topic":"orders","Number":3},"ID":11}],` +
			`"Deferred":[{"Partition":{"Group":"billing","Topic":"orders","Number":3},"ID":7,"At":"2026-11-29T14:00:00.000005Z"}]}`: &requests{
			Acts: 5, Replays: []requested{{p, 6}}, Retries: []requested{{p, 11}}, Deferred: []due{{requested{p, 7}, at}},
		},
		`{"ID":11,"Partition":{"Group":"billing","Topic":"orders","Number":3},"Offset":90,"Key":"k","Scope":"account/17","IdempotencyKey":"i","Method":"POST","URL":"http://host/x",` +
			`"Header":{"A":["b"]},"Body":null,"AddedAt":"2026-11-29T14:00:00.000005Z","RetryRequested":false}`: &noted{OutboxEntry: operate.OutboxEntry{
			ID: 11, Partition: p, Offset: 90, Key: "k", Scope: "account/17", IdempotencyKey: "i", Method: "POST", URL: "http://host/x", Header: http.Header{"A": {"b"}}, AddedAt: at,
		}},
	} {
		if got, err := form.Text(want); err != nil || string(got) != text {
			t.Errorf("%T is written as\n%s, %v; want\n%s", want, got, err, text)
		}
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface().(form.Form)
		if err := form.Parse([]byte(text), got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%T is read as\n%+v, %v; want\n%+v", want, got, err, want)
		}
	}
}

func TestAnEntryWithoutAnOffsetIsOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	at := entryItem{stored: cas.Item{Note: []byte(`{"ID":11}`)}}
	if err := at.decode(); err != nil || at.entry.Offset != -1 {
		t.Errorf("offset %d, %v; want -1", at.entry.Offset, err)
	}
}

func TestTheStoredFormOfVersion1OfKeys(t *testing.T) {
	t.Parallel()
	k, p := keys{"epochfence"}, epoch.Partition{Group: "billing/eu", Topic: "100%", Number: 3}
	for _, c := range []struct{ got, want string }{
		{k.fence(p), "epochfence/fence/billing%2Feu/100%25/3"},
		{k.topic(p.Group, p.Topic), "epochfence/topic/billing%2Feu/100%25"},
		{k.letter(p, 7), "epochfence/dead/billing%2Feu/100%25/3/7"},
		{k.part(p, 7, 1), "epochfence/dead-parts/billing%2Feu/100%25/3/7/1"},
		{k.log(p), "epochfence/log/billing%2Feu/100%25/3"},
		{k.lists(p), "epochfence/lists/billing%2Feu/100%25/3"},
		{k.entry(p, 7), "epochfence/outbox/billing%2Feu/100%25/3/7"},
		{k.process("RUN"), "epochfence/process/RUN"},
		{k.requests(), "epochfence/requests"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	for key, want := range map[string]int64{k.fence(p): 0, k.fence(p) + "/7": 7} {
		if got, id, ok := k.parse(k.fences(), key); !ok || got != p || id != want {
			t.Errorf("%s is read as %v, %d, %t", key, got, id, ok)
		}
	}
	for _, key := range []string{"", "a", "a/b", "a/b/c", "a/b/1/2/3", "a/%/1", "a/b/99999999999"} {
		if got, _, ok := k.parse(k.fences(), k.fences()+key); ok {
			t.Errorf("%s is read as %v", key, got)
		}
	}
}
