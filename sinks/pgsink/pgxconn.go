package pgsink

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// This file has what the Conn of a handle is: a closed connection, because an open one would lead
// around the fence.

// closedConns are connections by their query mode, for functions that ask a [pgx.Tx] for its Conn
// to learn the mode. River does, because its jobs are JSON, which is sent differently in some
// modes. The connections are closed, and know neither a server nor a password. pgx makes no
// connection without connecting, so each has shaken hands with a server in memory.
var closedConns sync.Map // of *pgx.Conn

// closedConn returns one, or nil if pgx cannot make one in this environment.
func closedConn(mode pgx.QueryExecMode) *pgx.Conn {
	if known, is := closedConns.Load(mode); is {
		return known.(*pgx.Conn)
	}
	config, err := pgx.ParseConfig("host=closed port=5432 user=closed database=closed password=closed sslmode=disable")
	if err != nil {
		return nil
	}
	config.Password, config.DefaultQueryExecMode = "", mode
	config.Fallbacks, config.RuntimeParams, config.ValidateConnect = nil, nil, nil // which the environment may have set
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"closed"}, nil }
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go welcome(server)
		return client, nil
	}
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		return nil
	}
	closeNow(conn)
	kept, _ := closedConns.LoadOrStore(mode, conn)
	return kept.(*pgx.Conn)
}

func welcome(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	server := pgproto3.NewBackend(conn, conn)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.ReadyForQuery{TxStatus: noTransaction})
	if server.Flush() == nil {
		_, _ = server.Receive()
	}
}
