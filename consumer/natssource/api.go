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

// ask sends a JetStream API request for which nats.go has no call, or only a call that a lagging
// replica may answer. Only the stream's leader answers these requests.
func ask(ctx context.Context, js jetstream.JetStream, subject string, request, response any) error {
	return askAt(ctx, js.Conn(), apiPrefix(js)+subject, request, response)
}

// askAt is ask with the whole subject, which may belong to another domain.
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

type storedMessage struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`
}

// stored asks a stream's leader for a message. The request is the server's JSApiMsgGetRequest. It
// returns [jetstream.ErrMsgNotFound] if there is no such message.
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

// codeNoPeers is nats-server's JSClusterNoPeersErr: the JetStream leader knows too few servers to
// create something. A new leader has to hear from the other servers first.
const codeNoPeers jetstream.ErrorCode = 10005

// passing reports whether a request failed for a reason that may pass by itself.
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

// PermissionError is returned when the connection's user lacks a permission that the source needs.
// The server reports a refusal to the connection and not to the request, so a request that failed
// with a timeout may have been refused too.
type PermissionError struct {
	Subject string // the subject that the user may not publish or subscribe to
	Err     error
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("this user may not use the subject %q; allow it (the package documentation lists what is needed): %v", e.Subject, e.Err)
}

// Unwrap returns the server's error, which is [nats.ErrPermissionViolation].
func (e *PermissionError) Unwrap() error { return e.Err }

// denied returns a [PermissionError] if the server refused a request that was not answered in time.
// begins is the beginning of the request's subject. A refused subscription to the inbox, where no
// answer can arrive, counts too.
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
