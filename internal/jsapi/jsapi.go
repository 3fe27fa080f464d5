// Package jsapi has the requests of JetStream's API for which nats.go has no call, and what their
// errors mean.
package jsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Prefix returns what the subjects of API requests begin with.
func Prefix(js jetstream.JetStream) string {
	o := js.Options()
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// Ask sends a JetStream API request for which nats.go has no call, or only a call that a lagging
// replica may answer. Only the stream's leader answers these requests.
func Ask(ctx context.Context, js jetstream.JetStream, subject string, request, response any) error {
	return AskAt(ctx, js.Conn(), Prefix(js)+subject, request, response)
}

// AskAt is [Ask] with the whole subject, which may belong to another domain.
func AskAt(ctx context.Context, conn *nats.Conn, subject string, request, response any) error {
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

// Message is a stored message.
type Message struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`
}

// Stored asks a stream's leader for a message. The request is the server's JSApiMsgGetRequest. It
// returns [jetstream.ErrMsgNotFound] if there is no such message.
func Stored(ctx context.Context, js jetstream.JetStream, stream string, request any) (Message, error) {
	var response struct {
		Message *Message `json:"message"`
	}
	err := Ask(ctx, js, "STREAM.MSG.GET."+stream, request, &response)
	switch {
	case HasCode(err, jetstream.JSErrCodeMessageNotFound):
		return Message{}, jetstream.ErrMsgNotFound
	case HasCode(err, jetstream.JSErrCodeStreamNotFound):
		return Message{}, jetstream.ErrStreamNotFound
	case err != nil:
		return Message{}, err
	case response.Message == nil:
		return Message{}, jetstream.ErrInvalidJetStreamResponse
	}
	return *response.Message, nil
}

// HasCode reports whether the server refused a request with one of these codes.
func HasCode(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}

// CodeNoPeers is nats-server's JSClusterNoPeersErr: the JetStream leader knows too few servers to
// create something. A new leader has to hear from the other servers first.
const CodeNoPeers jetstream.ErrorCode = 10005

// Passing reports whether a request failed for a reason that may pass by itself.
func Passing(err error) bool {
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionReconnecting,
		nats.ErrReconnectBufExceeded, nats.ErrStaleConnection, jetstream.ErrNoStreamResponse,
		ErrNoLeader, ErrLags, ErrWatchEnded,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.Code == 503 || api.Code == 500 || api.ErrorCode == CodeNoPeers)
}

// PermissionError is returned when the connection's user lacks a permission that a request needs.
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

// Denied returns a [PermissionError] if the server refused a request that was not answered in time.
// begins is the beginning of the request's subject. A refused subscription to the inbox, where no
// answer can arrive, counts too.
func Denied(nc *nats.Conn, begins string, err error) error {
	if err == nil || !Passing(err) {
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

// ErrNoLeader is returned for an answer that only the leader can give.
var ErrNoLeader = errors.New("the answer came from a server that does not lead the stream, or not yet")

// ErrLags is returned for a reader that was placed on a replica that is behind the leader. Another
// reader may be placed better, and the replica catches up.
var ErrLags = errors.New("the replica that is read lags")

// ErrWatchEnded is returned when nats.go has ended a watcher by itself.
var ErrWatchEnded = errors.New("the watcher has ended")

// Leads reports whether the server that sent this info is the leader. While there is no leader, or
// after a server was started, other servers answer too, with what they happen to have
// (nats-server's jsStreamInfoRequest). They name no leader, or another server, or themselves before
// they have joined the group.
func Leads(c *jetstream.ClusterInfo, replicas int) bool {
	if c == nil {
		return replicas < 2
	}
	isLeader := func(other *jetstream.PeerInfo) bool { return other.Name == c.Leader }
	joined := replicas < 2 || len(c.Replicas) > 0 || c.RaftGroup != ""
	return c.Leader != "" && joined && !slices.ContainsFunc(c.Replicas, isLeader)
}
