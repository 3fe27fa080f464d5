package natstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Backup is a copy of a stream, as `nats stream backup` makes it. A bucket is a stream with the
// name "KV_" and the bucket's name.
type Backup struct {
	config server.StreamConfig
	state  server.StreamState
	chunks [][]byte
}

// TakeBackup copies a stream without its consumers.
func TakeBackup(ctx context.Context, nc *nats.Conn, stream string) (*Backup, error) {
	b, err := takeBackup(ctx, nc, stream)
	if err != nil {
		return nil, fmt.Errorf("natstest: back up stream %q: %w", stream, err)
	}
	return b, nil
}

func takeBackup(ctx context.Context, nc *nats.Conn, stream string) (*Backup, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	var answer server.JSApiStreamSnapshotResponse
	err = call(ctx, nc, fmt.Sprintf(server.JSApiStreamSnapshotT, stream),
		server.JSApiStreamSnapshotRequest{DeliverSubject: inbox, NoConsumers: true}, &answer, &answer.ApiResponse)
	if err != nil {
		return nil, err
	}
	b := &Backup{config: *answer.Config, state: *answer.State}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		if len(m.Data) == 0 {
			if status := m.Header.Get("Status"); status != "" && status != "204" {
				return nil, fmt.Errorf("it ended with %s %s", status, m.Header.Get("Description"))
			}
			return b, nil
		}
		b.chunks = append(b.chunks, m.Data)
		if m.Reply == "" {
			continue
		}
		if err := m.Respond(nil); err != nil {
			return nil, err
		}
	}
}

// Restore makes the stream again, with its sequences and times. Only its creation time is new. The
// stream that it replaces must have been deleted.
func (b *Backup) Restore(ctx context.Context, nc *nats.Conn) error {
	if err := b.restore(ctx, nc); err != nil {
		return fmt.Errorf("natstest: restore stream %q: %w", b.config.Name, err)
	}
	return nil
}

func (b *Backup) restore(ctx context.Context, nc *nats.Conn) error {
	var answer server.JSApiStreamRestoreResponse
	err := call(ctx, nc, fmt.Sprintf(server.JSApiStreamRestoreT, b.config.Name),
		server.JSApiStreamRestoreRequest{Config: b.config, State: b.state}, &answer, &answer.ApiResponse)
	if err != nil {
		return err
	}
	for _, chunk := range b.chunks {
		if _, err := nc.RequestWithContext(ctx, answer.DeliverSubject, chunk); err != nil {
			return err
		}
	}
	var end server.JSApiStreamCreateResponse
	return call(ctx, nc, answer.DeliverSubject, nil, &end, &end.ApiResponse)
}

func call(ctx context.Context, nc *nats.Conn, subject string, request, answer any, head *server.ApiResponse) error {
	var data []byte
	if request != nil {
		var err error
		if data, err = json.Marshal(request); err != nil {
			return err
		}
	}
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return err
	}
	if head.Error != nil {
		return errors.New(head.Error.Description)
	}
	return nil
}
