package natssource

import (
	"errors"

	"github.com/epochfence/epochfence/cas/natsstore"
)

// PermissionError is returned when the connection's user lacks a permission that the source needs.
// Its field Subject is the subject that the user may not publish or subscribe to.
type PermissionError = natsstore.PermissionError

var errOtherStream = errors.New("the stream was deleted and created again")
