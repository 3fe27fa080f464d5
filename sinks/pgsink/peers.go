package pgsink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/operate"
)

// This file gives signs to the other processes of a group, and reads theirs, on a connection of its own. What a
// sign is, and which peers a process sees, is in 0010_peers.sql. Package failover decides who is suspected.

var _ operate.Watch = (*Sink)(nil)

// peerTimeout limits a look, so that one that hangs becomes an error before others suspect this process.
const peerTimeout = 2 * time.Second

// vigil is a process's connection. Its session holds an advisory lock for as long as it lives: who gets that
// lock knows that the process has died, or is about to connect again.
type vigil struct {
	sink *Sink
	conn *pgx.Conn
	self operate.Peer
	key  *int64          // of the lock; nil if the session is not ours alone
	seen map[string]sign // of each peer of the last look, by its run
}

// sign is a peer's last sign: its age, and its time by the server's clock in microseconds.
type sign struct {
	silent time.Duration
	at     int64
}

// Attend implements [operate.Watch]. It opens one connection beside the pool, with the pool's configuration and
// application_name followed by " watch". Behind a pooler the connection holds no lock: there the others
// notice a death by its silence alone.
func (s *Sink) Attend(ctx context.Context, self operate.Peer) (operate.Vigil, error) {
	v := &vigil{sink: s, self: self}
	err := v.open(ctx)
	if err == nil {
		_, err = v.look(ctx, self)
	}
	if err == nil {
		return v, nil
	}
	if v.conn != nil {
		closeNow(v.conn)
	}
	return nil, fmt.Errorf("pgsink: watch group %s: %w", self.Group, permitted(err))
}

// permitted marks the error of a function that is not there, or not for this role.
func permitted(err error) error {
	switch err = explain(err); sqlState(err) {
	case "42883", "42501", "3F000": // undefined_function, insufficient_privilege, invalid_schema_name
		err = fmt.Errorf("%w: %w", operate.ErrNoWatch, err)
	}
	return err
}

// open connects as the pool does, whose hooks may set a password that changes, and takes the session's lock.
func (v *vigil) open(ctx context.Context) (err error) {
	ctx, cancel := v.sink.bounded(ctx)
	defer cancel()
	pool := v.sink.pool.Config()
	config := pool.ConnConfig
	config.Tracer = nil // five spans a second that nobody reads
	config.RuntimeParams["application_name"] = strings.TrimSpace(config.RuntimeParams["application_name"] + " watch")
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return err
		}
	}
	if v.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, v.conn); err != nil {
			return err
		}
	}
	// A pooler gives its clients numbers of its own, and lends the session.
	var pid uint32
	if err := v.conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()").Scan(&pid); err != nil || pid != v.conn.PgConn().PID() {
		return err
	}
	key := rand.Int64() // each connection has another one, so that the end of the last one tells nothing
	_, err = v.conn.Exec(ctx, "select pg_catalog.set_config('statement_timeout', $1::text, false), pg_catalog.pg_advisory_lock($2::bigint)",
		setting(peerTimeout), key)
	v.key = &key
	return err
}

// Look implements [operate.Vigil].
func (v *vigil) Look(ctx context.Context, self operate.Peer) (operate.Look, error) {
	look, err := v.look(ctx, self)
	if err != nil {
		return operate.Look{}, fmt.Errorf("pgsink: look at group %s: %w", self.Group, err)
	}
	return look, nil
}

func (v *vigil) look(ctx context.Context, self operate.Peer) (look operate.Look, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	v.self, v.seen = self, map[string]sign{}
	rows, _ := v.conn.Query(ctx, v.sink.sql.peers, self.Group, self.Run, self.Name, self.Host, self.Member, self.Patience.Microseconds(), v.key) // its error comes below
	var p operate.Peer
	var patience, silent, signed, members, silents int64
	_, err = pgx.ForEachRow(rows, []any{&p.Run, &p.Name, &p.Host, &p.Member, &patience, &silent, &signed, &p.Gone, &p.Suspected, &p.By, &members, &silents}, func() error {
		if p.Run == "" {
			look.Members, look.Silent = int(members), int(silents)
			return nil
		}
		p.Group, p.Patience, p.Silent = self.Group, time.Duration(patience)*time.Microsecond, time.Duration(silent)*time.Microsecond
		v.seen[p.Run] = sign{p.Silent, signed}
		look.Peers = append(look.Peers, p)
		return nil
	})
	return look, err
}

// Suspect implements [operate.Vigil]. p is of the last look, or has given no sign since it was seen.
func (v *vigil) Suspect(ctx context.Context, by, p operate.Peer) (ours bool, err error) {
	seen, ok := v.seen[p.Run]
	if !ok || seen.silent < p.Silent {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	err = v.conn.QueryRow(ctx, v.sink.sql.suspect, p.Group, p.Run, p.Member, seen.at, by.Name).Scan(&ours)
	if err != nil {
		return false, fmt.Errorf("pgsink: suspect %s of group %s: %w", p.Name, p.Group, permitted(err))
	}
	return ours, nil
}

// Close implements [operate.Vigil].
func (v *vigil) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	if _, err := v.conn.Exec(ctx, v.sink.sql.leave, v.self.Group, v.self.Run); err != nil {
		closeNow(v.conn)
		return
	}
	_ = v.conn.Close(ctx)
}
