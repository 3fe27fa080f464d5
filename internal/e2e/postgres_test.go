package e2e_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// soonEnough is how long a refusal may take to be reported, on a machine that does other things, too.
const soonEnough = 30 * time.Second

func TestAPostgresThatCannotBeReachedIsAnErrorAndNothingIsLost(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true})
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), postgresOn(t, server.Database(t)).granted()
	produce(t, reach(c), numbered(topic, 0, 10)...)
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 10)

	if err := server.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	err := within(t, soonEnough, func(ctx context.Context) error { return openOn(ctx, newPool(t, d.url)) })
	wantError(t, err, "pgsink: ", "127.0.0.1", "connection refused")
	produce(t, reach(c), numbered(topic, 10, 10)...)
	r.reported(soonEnough, "pgsink: ", "billing/orders/0", "127.0.0.1")
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.advancedTo(part(group, topic), 20)
	r.stop()
	d.admin = d.db.Superuser(t) // the other connection went with the server
	wantValues(t, d.applied(), counted(20))
}

func TestAWrongPostgresPasswordIsAnErrorAndNothingIsLost(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t).granted()
	produce(t, reach(c), numbered(topic, 0, 10)...)

	u, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(d.role, "wrong")
	wrong := newPool(t, u.String())
	err = within(t, soonEnough, func(ctx context.Context) error { return openOn(ctx, wrong) })
	wantError(t, err, "pgsink: ", "refused the credentials", d.role)
	err = within(t, soonEnough, func(ctx context.Context) error { return pgsink.Migrate(ctx, wrong, pgsink.Options{Schema: "other"}) })
	wantError(t, err, "pgsink: ", `schema "other"`, "refused the credentials")

	// And one that changes while the consumer runs.
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 10)
	d.exec("alter role " + d.role + " password 'changed'")
	d.disconnect()
	produce(t, reach(c), numbered(topic, 10, 10)...)
	r.reported(soonEnough, "pgsink: ", "billing/orders/0", "refused the credentials")
	d.exec("alter role " + d.role + " password '" + password + "'")
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func openOn(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pgsink.Open(ctx, pool, pgsink.Options{StartTimeout: 10 * time.Second})
	return err
}

func TestNoPermissionOnTheSchemaIsAnErrorAndNothingIsLost(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t)
	produce(t, reach(c), numbered(topic, 0, 10)...)

	err := within(t, soonEnough, d.open)
	wantError(t, err, "pgsink: ", `"epochfence"`, "pgsink.Grant")
	if !errors.Is(err, pgsink.ErrPermission) {
		t.Errorf("err = %v, want ErrPermission", err)
	}
	err = within(t, soonEnough, func(ctx context.Context) error { return pgsink.Migrate(ctx, d.pool, pgsink.Options{Schema: "mine"}) })
	wantError(t, err, "pgsink: ", `schema "mine"`, "permission denied")

	// And one that is taken back while the consumer runs.
	d.granted()
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 10)
	d.exec("revoke usage on schema epochfence from " + d.role)
	d.disconnect()
	produce(t, reach(c), numbered(topic, 10, 10)...)
	r.reported(soonEnough, "pgsink: ", "billing/orders/0", "epochfence grants")
	d.granted()
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func TestNoPermissionOnTheHandlersTableHaltsBlamesNoMessageAndNothingIsLost(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newPostgres(t).granted()
	produce(t, reach(c), numbered(topic, 0, 10)...)
	d.exec("revoke insert on effects from " + d.role)
	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.reported(soonEnough, "pgsink: ", "billing/orders/0", "the handler's statement needs", "permission denied for table effects")
	for _, e := range r.seen() {
		if err := errorOf(e); err != nil && !errors.Is(err, epoch.ErrUnhealthy) {
			t.Errorf("%T%+v is not ErrUnhealthy", e, e)
		}
	}
	d.exec("grant insert on effects to " + d.role)
	r.advancedTo(part(group, topic), 10)
	r.stop()
	none[consumer.InDoubt](r)
	wantValues(t, d.applied(), counted(10))
}
