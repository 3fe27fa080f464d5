package natssource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// apiPrefix is what requests to js begin with, ending in a dot.
func apiPrefix(js jetstream.JetStream) string {
	o := js.Options()
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// ask makes a request of the JetStream API that nats.go has no call for, or
// whose call may be answered by a replica that lags behind. Only the leader of
// the stream answers these.
func ask(ctx context.Context, js jetstream.JetStream, subject string, request, response any) error {
	return askAt(ctx, js.Conn(), apiPrefix(js)+subject, request, response)
}

// askAt is ask with the whole subject, which may be that of another domain.
func askAt(ctx context.Context, conn *nats.Conn, subject string, request, response any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	m, err := conn.RequestWithContext(ctx, subject, data)
	if err != nil {
		return err
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("the answer is not one of JetStream's: %w", err)
	}
	if failed.Error != nil {
		return failed.Error
	}
	return json.Unmarshal(m.Data, response)
}

// storedMessage is a message as the leader of its stream holds it.
type storedMessage struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`
}

// stored asks the leader of a stream for a message. The request is the server's
// JSApiMsgGetRequest. The error is [jetstream.ErrMsgNotFound] if there is none.
func stored(ctx context.Context, js jetstream.JetStream, stream string, request any) (storedMessage, error) {
	var response struct {
		Message *storedMessage `json:"message"`
	}
	err := ask(ctx, js, "STREAM.MSG.GET."+stream, request, &response)
	switch {
	case hasCode(err, jetstream.JSErrCodeMessageNotFound):
		return storedMessage{}, jetstream.ErrMsgNotFound
	case hasCode(err, jetstream.JSErrCodeStreamNotFound):
		return storedMessage{}, jetstream.ErrStreamNotFound
	case err != nil:
		return storedMessage{}, err
	case response.Message == nil:
		return storedMessage{}, jetstream.ErrInvalidJetStreamResponse
	}
	return *response.Message, nil
}

func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	for _, c := range codes {
		if api.ErrorCode == c {
			return true
		}
	}
	return false
}

// codeNoPeers is nats-server's JSClusterNoPeersErr, which nats.go has no name for:
// whoever leads JetStream does not know servers enough for what is to be created.
// One that has just begun to lead waits to hear from the others.
const codeNoPeers jetstream.ErrorCode = 10005

// passing reports whether a request failed for a reason that may pass by
// itself: nobody answered, or JetStream was not ready.
func passing(err error) bool {
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionReconnecting,
		nats.ErrReconnectBufExceeded, nats.ErrStaleConnection, jetstream.ErrNoStreamResponse, errSilent, errNoLeader,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.Code == 503 || api.Code == 500 || api.ErrorCode == codeNoPeers)
}

// PermissionError says that the user of the connection may not do what the
// source needs to do. It is found out by the way in which the server refuses
// it, so a request that was not answered may have been refused all the same.
type PermissionError struct {
	Subject string // on which it may not publish or to which it may not subscribe
	Err     error  // of the server
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("this user may not use the subject %q; allow it (the package documentation lists what is needed): %v", e.Subject, e.Err)
}

// Unwrap returns the server's error, which is [nats.ErrPermissionViolation].
func (e *PermissionError) Unwrap() error { return e.Err }

// denied explains a request that was not answered in time: the server tells a
// refused one to the connection, not to whoever waits for the answer. begins is
// how the request's subject begins. A refused inbox, where no answer arrives, is
// told too.
func denied(nc *nats.Conn, begins string, err error) error {
	if err == nil || !passing(err) {
		return err
	}
	last := nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return err
	}
	_, said, ok := strings.Cut(last.Error(), `"`)
	subject, _, closed := strings.Cut(said, `"`)
	inbox, _, _ := strings.Cut(nc.NewInbox(), ".")
	if !ok || !closed || !strings.HasPrefix(subject, begins) && !strings.HasPrefix(subject, inbox+".") {
		return err
	}
	return &PermissionError{Subject: subject, Err: last}
}
