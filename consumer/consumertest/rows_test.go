package consumertest

import "testing"

func TestADefaultVariesIfItReadsAClockOrRandomNumbers(t *testing.T) {
	for expression, want := range map[string]bool{
		"'unknown'::text": false,
		"'2020-01-01 00:00:00'::timestamp without time zone": false,
		"'it''s now() or current_date'::text":                false,
		"0":                                                  false,
		"date('2020-01-01')":                                 false,
		"unknown()":                                          false,
		"'now'":                                              false,
		"now()":                                              true,
		"(now() + '1 day'::interval)":                        true,
		"CURRENT_TIMESTAMP":                                  true,
		"CURRENT_DATE":                                       true,
		"clock_timestamp()":                                  true,
		"gen_random_uuid()":                                  true,
		"(public.uuid_generate_v4())::text":                  true,
		"uuidv7()":                                           true,
		"datetime('now')":                                    true,
		"strftime('%Y-%m-%dT%H:%M:%fZ', 'now')":              true,
		"unixepoch()":                                        true,
		"hex(randomblob(16))":                                true,
		"random()":                                           true,
	} {
		if varies(expression) != want {
			t.Errorf("%s: want %t", expression, want)
		}
	}
}
