package dynamostore

import (
	"errors"
	"testing"

	"github.com/aws/smithy-go"

	"github.com/epochfence/epochfence/cas"
)

// DynamoDB Local has no limits of capacity.
func TestARefusalForWantOfCapacityIsAFullStore(t *testing.T) {
	for code, want := range map[string]error{
		"ProvisionedThroughputExceededException":   cas.ErrFull,
		"ThrottlingException":                      cas.ErrFull,
		"RequestLimitExceeded":                     cas.ErrFull,
		"ItemCollectionSizeLimitExceededException": cas.ErrFull,
		"ConditionalCheckFailedException":          cas.ErrConflict,
	} {
		if err := refusal(&smithy.GenericAPIError{Code: code}); !errors.Is(err, want) {
			t.Errorf("%s: err = %v, want %q", code, err, want)
		}
	}
	if err := refusal(&smithy.GenericAPIError{Code: "InternalServerError"}); errors.Is(err, cas.ErrFull) || errors.Is(err, cas.ErrConflict) {
		t.Errorf("an outcome that is not known: %v", err)
	}
}
