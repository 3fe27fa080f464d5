package pgsink_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// cut says what becomes of the next thing that the client sends.
type cut int

const (
	cutNothing cut = iota
	cutBefore      // the connection is lost, and the server never sees it
	cutAfter       // the server does it, and its answer is lost with the connection
	cutWithin      // the same, but for the answers before that of the COMMIT, or the last row of a query
)

// wire is the network between a pool and its server.
type wire struct {
	mu    sync.Mutex
	cut   cut
	sends int // since it was last asked
}

func (w *wire) arm(c cut) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = c
}

// sent returns how often the client has sent something and waited for the
// answer since the last call.
func (w *wire) sent() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.sends
	w.sends = 0
	return n
}

// one is a pool of one connection over this wire.
func (w *wire) one(c *pgxpool.Config) {
	c.MaxConns = 1
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wireConn{Conn: conn, wire: w}, nil
	}
}

type wireConn struct {
	net.Conn
	wire    *wire
	cutting atomic.Bool
	reading sync.Mutex // held while anyone reads
	last    []byte     // what is still read after the cut
}

// Read gives way to a cut: pgx begins to read when a Write takes long.
func (c *wireConn) Read(b []byte) (int, error) {
	for {
		n, err := c.read(b)
		if n > 0 || !c.cutting.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

func (c *wireConn) read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.last) > 0 {
		n := copy(b, c.last)
		c.last = c.last[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.wire.mu.Lock()
	how := c.wire.cut
	c.wire.cut = cutNothing
	c.wire.sends++
	c.wire.mu.Unlock()
	switch how {
	case cutBefore:
		_ = c.Close()
		return len(b), nil // as a kernel says that has it in a buffer
	case cutAfter, cutWithin:
		c.cutting.Store(true)
		_ = c.SetReadDeadline(time.Now())
		c.reading.Lock()
		defer c.reading.Unlock()
		_ = c.SetReadDeadline(time.Time{})
		n, err := c.Conn.Write(b)
		// The server answers when it is done: a batch is synced at its end.
		var answer []byte
		buf := make([]byte, 4096)
		for err == nil && !bytes.HasSuffix(answer, []byte{'Z', 0, 0, 0, 5, 'I'}) {
			var m int
			m, err = c.Conn.Read(buf)
			answer = append(answer, buf[:m]...)
		}
		_ = c.Close()
		if how == cutWithin {
			// CommandComplete: 'C', a length of four bytes, the tag.
			end := bytes.LastIndex(answer, []byte("COMMIT\x00"))
			if end < 0 {
				end = bytes.LastIndex(answer, []byte("SELECT "))
			}
			c.last = answer[:end-5]
		}
		return n, err
	default:
		return c.Conn.Write(b)
	}
}
