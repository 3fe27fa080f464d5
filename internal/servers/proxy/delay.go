package proxy

import (
	"context"
	"net"
	"time"
)

type delayed struct {
	net.Conn
	by   time.Duration
	came chan arrival
	now  arrival

	open  context.Context
	close context.CancelFunc
}

type arrival struct {
	data []byte
	err  error
	at   time.Time
}

// Delay returns a connection that reads from c what arrived there so much earlier.
func Delay(c net.Conn, by time.Duration) net.Conn {
	d := &delayed{Conn: c, by: by, came: make(chan arrival, 1<<12)}
	d.open, d.close = context.WithCancel(context.Background())
	go d.receive()
	return d
}

func (d *delayed) receive() {
	for {
		a := arrival{data: make([]byte, 4<<10)}
		n, err := d.Conn.Read(a.data)
		a.data, a.err, a.at = a.data[:n], err, time.Now()
		select {
		case d.came <- a:
		case <-d.open.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *delayed) Read(p []byte) (int, error) {
	if len(d.now.data) == 0 && d.now.err == nil {
		select {
		case d.now = <-d.came:
		case <-d.open.Done():
			return 0, net.ErrClosed
		}
		timer := time.NewTimer(time.Until(d.now.at.Add(d.by)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.open.Done():
			return 0, net.ErrClosed
		}
	}
	n := copy(p, d.now.data)
	if d.now.data = d.now.data[n:]; n > 0 {
		return n, nil
	}
	return 0, d.now.err
}

func (d *delayed) Close() error {
	d.close()
	return d.Conn.Close()
}
