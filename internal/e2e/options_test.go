package e2e_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

type (
	runOptions   = consumer.Options
	kafkaOptions = kafkasource.Options
)

// wrongOption is a constructor with one option that cannot be meant.
type wrongOption struct {
	option string // as the error names it
	err    func(t *testing.T) error
}

// counts and waits are options with two values that cannot be meant: one is
// negative, the other huge.
func counts[O any](what string, try func(*testing.T, O) error, field func(*O) *int) []wrongOption {
	return wrong(what, try, field, []int{-1, math.MinInt, math.MaxInt})
}

func waits[O any](what string, try func(*testing.T, O) error, field func(*O) *time.Duration) []wrongOption {
	return wrong(what, try, field, []time.Duration{-1, math.MinInt64, math.MaxInt64, 1000 * time.Hour})
}

func wrong[O, V any](what string, try func(*testing.T, O) error, field func(*O) *V, values []V) []wrongOption {
	var all []wrongOption
	for _, v := range values {
		all = append(all, wrongOption{what, func(t *testing.T) error {
			var o O
			*field(&o) = v
			return try(t, o)
		}})
	}
	return all
}

// The consumer would run for ever if it took the option: whoever fails this test
// for that reason gets context.DeadlineExceeded.
func tryRun(t *testing.T, o runOptions) error {
	ctx, cancel := context.WithTimeout(t.Context(), soonEnough)
	defer cancel()
	o.Logger = quiet()
	handle := func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil }
	if err := consumer.Run(ctx, memsource.New(topic, 1).Member("a"), memsink.New(), consumer.Each(handle), o); err != nil {
		return err
	}
	return ctx.Err()
}

func tryKafka(_ *testing.T, o kafkaOptions) error {
	o.Group, o.Topics = group, []string{topic}
	_, err := kafkasource.New(o)
	return err
}

// Options are judged before anything is asked of the database, so none is needed.
func tryPostgres(t *testing.T, o pgsink.Options) error {
	_, err := pgsink.Open(t.Context(), nil, o)
	return err
}

func trySQLite(t *testing.T, o sqlsink.Options) error {
	_, err := sqlsink.Open(t.Context(), nil, sqlsink.SQLite, o)
	return err
}

func tryMigrate(t *testing.T, o sqlsink.Options) error {
	return sqlsink.Migrate(t.Context(), nil, sqlsink.SQLite, o)
}

func TestNegativeAndHugeOptionsAreErrorsThatNameTheOption(t *testing.T) {
	t.Parallel()
	cases := [][]wrongOption{
		counts("consumer: Options.MaxBatch", tryRun, func(o *runOptions) *int { return &o.MaxBatch }),
		counts("consumer: Options.Committers", tryRun, func(o *runOptions) *int { return &o.Committers }),
		counts("consumer: Options.MaxAttempts", tryRun, func(o *runOptions) *int { return &o.MaxAttempts }),
		waits("consumer: Options.BatchTimeout", tryRun, func(o *runOptions) *time.Duration { return &o.BatchTimeout }),
		waits("consumer: Options.RetryMin", tryRun, func(o *runOptions) *time.Duration { return &o.RetryMin }),
		waits("consumer: Options.RetryMax", tryRun, func(o *runOptions) *time.Duration { return &o.RetryMax }),
		waits("consumer: Options.HaltMin", tryRun, func(o *runOptions) *time.Duration { return &o.HaltMin }),
		waits("consumer: Options.HaltMax", tryRun, func(o *runOptions) *time.Duration { return &o.HaltMax }),
		wrong("consumer: Options.Start", tryRun, func(o *runOptions) *consumer.StartPolicy { return &o.Start }, []consumer.StartPolicy{-1, math.MaxInt}),

		counts("kafkasource: Options.BufferBytes", tryKafka, func(o *kafkaOptions) *int { return &o.BufferBytes }),
		wrong("kafkasource: Options.BufferBytes", tryKafka, func(o *kafkaOptions) *int { return &o.BufferBytes }, []int{1, 1000}),
		waits("kafkasource: Options.StartTimeout", tryKafka, func(o *kafkaOptions) *time.Duration { return &o.StartTimeout }),
		waits("kafkasource: Options.DrainTimeout", tryKafka, func(o *kafkaOptions) *time.Duration { return &o.DrainTimeout }),
		waits("kafkasource: Options.MirrorInterval", tryKafka, func(o *kafkaOptions) *time.Duration { return &o.MirrorInterval }),
		wrong("kafkasource: ", tryKafka, func(o *kafkaOptions) *[]kgo.Opt { return &o.Client }, [][]kgo.Opt{
			{kgo.SessionTimeout(-time.Second)}, {kgo.HeartbeatInterval(time.Hour)}, {kgo.HeartbeatInterval(-time.Second)},
			{kgo.RebalanceTimeout(-time.Second)}, {kgo.BrokerMaxReadBytes(-1)},
		}),

		waits("pgsink: Options.StatementTimeout", tryPostgres, func(o *pgsink.Options) *time.Duration { return &o.StatementTimeout }),
		waits("pgsink: Options.IdleTimeout", tryPostgres, func(o *pgsink.Options) *time.Duration { return &o.IdleTimeout }),
		waits("pgsink: Options.LockTimeout", tryPostgres, func(o *pgsink.Options) *time.Duration { return &o.LockTimeout }),
		waits("pgsink: Options.ClaimTimeout", tryPostgres, func(o *pgsink.Options) *time.Duration { return &o.ClaimTimeout }),
		waits("pgsink: Options.CallTimeout", tryPostgres, func(o *pgsink.Options) *time.Duration { return &o.CallTimeout }),
		wrong("pgsink: Options.Schema", tryPostgres, func(o *pgsink.Options) *string { return &o.Schema }, []string{strings.Repeat("x", 64), odd}),

		waits("sqlsink: Options.LockTimeout", trySQLite, func(o *sqlsink.Options) *time.Duration { return &o.LockTimeout }),
		waits("sqlsink: Options.LockTimeout", tryMigrate, func(o *sqlsink.Options) *time.Duration { return &o.LockTimeout }),
		wrong("sqlsink: Options.TablePrefix", trySQLite, func(o *sqlsink.Options) *string { return &o.TablePrefix }, []string{strings.Repeat("x", 33), "a'b", odd}),
	}
	for _, c := range cases {
		for _, w := range c {
			err := w.err(t)
			switch {
			case err == nil:
				t.Errorf("%s: no error", w.option)
			case !says(err, w.option):
				t.Errorf("the error %q does not name %s", err, w.option)
			default:
				t.Log(err)
			}
		}
	}
}
