package kafkasource

import (
	"testing"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

const testClaim = "00112233-4455-6677-8899-aabbccddeeff"

// These bytes are frozen: processes of other versions, and the command line, read them. See package form.
func TestTheStoredFormOfVersion1OfAnOffsetsMetadata(t *testing.T) {
	claim, err := epoch.ParseClaimID(testClaim)
	if err != nil {
		t.Fatal(err)
	}
	const text = "epochfence epoch=8 claim=" + testClaim
	want := committed{at: 100, leaderEpoch: 7, metadata: text}
	if got := committedOf(epoch.Fence{Next: 100, Mark: 7, Epoch: 8, Claim: claim}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for metadata, known := range map[string]bool{
		text:                      true,
		text + " lag=3":           true, // of tomorrow
		"epochfence v2 8/" + text: false,
		"epochfence ":             false,
	} {
		c := committed{at: 100, metadata: metadata}
		got, ok := c.claimed()
		if !c.ours() || ok != known || known && got != (tenures.Claimed{Epoch: 8, Claim: claim, Next: 100}) {
			t.Errorf("%q: ours %t, %+v, %t", metadata, c.ours(), got, ok)
		}
	}
	if (committed{metadata: "somebody's"}).ours() {
		t.Error("another program's is ours")
	}
}
