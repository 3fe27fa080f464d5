package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// times returns the next ticks after a local time, in the form "25 02:30+02".
func times(t *testing.T, cron, zone, after string, n int) string {
	t.Helper()
	where, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	table, err := parse(cron, where)
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.ParseInLocation("2006-01-02 15:04", after, where)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for range n {
		at = table.next(at)
		got = append(got, at.In(where).Format("02 15:04-07"))
	}
	return strings.Join(got, ", ")
}

func TestClocksThatAreSetForwardAndBack(t *testing.T) {
	t.Parallel()
	const forward, back = "2026-03-29 00:50", "2026-10-25 01:10"
	for name, c := range map[string]struct{ cron, zone, after, want string }{
		"a tick that does not exist is run after the gap": {"30 2 * * *", "Europe/Berlin", forward, "29 03:30+02, 30 02:30+02, 31 02:30+02"},
		"a tick that exists twice is run the first time":  {"30 2 * * *", "Europe/Berlin", back, "25 02:30+02, 26 02:30+01, 27 02:30+01"},
		"each 20 minutes, in an hour less":                {"*/20 * * * *", "Europe/Berlin", forward, "29 01:00+01, 29 01:20+01, 29 01:40+01"},
		"each 20 minutes, in an hour more":                {"*/20 * * * *", "Europe/Berlin", "2026-10-25 01:50", "25 02:00+02, 25 02:20+02, 25 02:40+02, 25 02:00+01, 25 02:20+01"},
		"some hours of the day, which exist twice":        {"15 1-3 * * *", "Europe/Berlin", back, "25 01:15+02, 25 02:15+02, 25 03:15+01"},
		"some hours of the day, of which one is missing":  {"15 1-3 * * *", "Europe/Berlin", forward, "29 01:15+01, 29 03:15+02, 30 01:15+02"},
		"midnight does not exist":                         {"0 0 * * *", "America/Santiago", "2026-09-05 12:00", "06 01:00-03, 07 00:00-03, 08 00:00-03"},
		"midnight exists twice":                           {"30 23 * * *", "America/Santiago", "2026-04-04 12:00", "04 23:30-03, 05 23:30-04, 06 23:30-04"},
		"minutes that come later, beside others":          {"*/30 1-3 * * *", "Europe/Berlin", forward, "29 01:00+01, 29 01:30+01, 29 03:00+02, 29 03:30+02, 30 01:00+02"},
		"each month, over both":                           {"0 2 1 * *", "Europe/Berlin", forward, "01 02:00+02, 01 02:00+02"},
		"each Friday and each 13th":                       {"0 0 13 * 5", "", "2026-02-01 00:00", "06 00:00Z, 13 00:00Z, 20 00:00Z, 27 00:00Z, 06 00:00Z, 13 00:00Z"},
		"each hour of a day without midnight":             {"45 * * * 0", "Asia/Beirut", "2026-03-28 23:00", "29 01:45+03, 29 02:45+03"},
		"once in many years":                              {"0 0 29 2 *", "", "2096-03-01 00:00", "29 00:00Z"},
		"half an hour more":                               {"45 1 * * *", "Australia/Lord_Howe", "2026-04-05 01:00", "05 01:45+11, 06 01:45+1030, 07 01:45+1030"},
		"UTC":                                             {"30 2 * * *", "", "2026-10-25 01:10", "25 02:30Z, 26 02:30Z, 27 02:30Z"},
		"multiples since 1970, whoever counts":            {"@every 90m", "", "2026-10-25 01:10", "25 01:30Z, 25 03:00Z, 25 04:30Z"},
		"a leap day":                                      {"0 0 29 2 *", "", "2026-10-25 01:10", "29 00:00Z, 29 00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := strings.ReplaceAll(c.want, "Z", "+00")
			if got := times(t, c.cron, c.zone, c.after, strings.Count(want, ",")+1); !strings.HasPrefix(strings.ReplaceAll(got, "1030", "10"), strings.ReplaceAll(want, "1030", "10")) {
				t.Errorf("%s in %s: %s, want %s", c.cron, c.zone, got, want)
			}
		})
	}
}

func TestAWrongJobIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	right := Job[int]{Name: "a", Cron: "@daily", Do: nothing}
	for want, wrong := range map[string]func(*Job[int]){
		"name":                    func(j *Job[int]) { j.Name = "" },
		"NUL":                     func(j *Job[int]) { j.Name = "a\x00" },
		"Cron \"\"":               func(j *Job[int]) { j.Cron = "" },
		"Cron \"1 2 3\"":          func(j *Job[int]) { j.Cron = "1 2 3" },
		"Cron \"61 * * * *\"":     func(j *Job[int]) { j.Cron = "61 * * * *" },
		"has no time":             func(j *Job[int]) { j.Cron = "0 0 30 2 *" },
		"whole seconds":           func(j *Job[int]) { j.Cron = "@every 1500ms" },
		"time zone in Zone":       func(j *Job[int]) { j.Cron = "CRON_TZ=Europe/Berlin 0 0 * * *" },
		"differ between machines": func(j *Job[int]) { j.Zone = "Local" },
		"time/tzdata":             func(j *Job[int]) { j.Zone = "Europe/Atlantis" },
		"one of Do and Step":      func(j *Job[int]) { j.Do = nil },
		"set one of Do and Step":  func(j *Job[int]) { j.Step = noStep },
		"Jitter is -1s":           func(j *Job[int]) { j.Jitter = -time.Second },
		"Jitter is 25h0m0s":       func(j *Job[int]) { j.Jitter = 25 * time.Hour },
		"MaxLate is -1s":          func(j *Job[int]) { j.MaxLate = -time.Second },
		"MaxRun is 1s":            func(j *Job[int]) { j.MaxRun = time.Second },
		"want CatchUpLast":        func(j *Job[int]) { j.CatchUp = 2 },
		"want OverrunSkip":        func(j *Job[int]) { j.Overrun = -1 },
	} {
		j := right
		wrong(&j)
		if _, err := j.plan("group"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if _, err := right.plan("group"); err != nil {
		t.Error(err)
	}
}

// Each time that clocks show is a tick once, and ticks come in order, however clocks are set.
func TestTheTicksAreTheTimesThatClocksShow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom([]string{"Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Pacific/Apia", "America/New_York", "Africa/Casablanca"}).Draw(t, "zone")
		cron := rapid.SampledFrom([]string{"30 2 * * *", "0 0 * * *", "*/20 0-3 * * *", "15,45 1,2,23 * * *", "0 */2 * * *", "59 23 * * 0,6"}).Draw(t, "cron")
		where, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		table, err := parse(cron, where)
		if err != nil {
			t.Fatal(err)
		}
		d := table.(daily)
		begin := time.Unix(rapid.Int64Range(1_200_000_000, 2_000_000_000).Draw(t, "begin"), 0).UTC()
		if rapid.Bool().Draw(t, "near a change") {
			for at := begin; at.Before(begin.AddDate(1, 0, 0)); at = at.Add(time.Hour) {
				if d.offset(at) != d.offset(at.Add(time.Hour)) {
					begin = at.Add(time.Duration(rapid.IntRange(-300, 300).Draw(t, "minutes")) * time.Minute)
					break
				}
			}
		}
		end := begin.AddDate(0, 0, 3)
		var want []time.Time
		for shown := d.wall.Next(begin.AddDate(0, 0, -3)); shown.Before(end.AddDate(0, 0, 3)); shown = d.wall.Next(shown) {
			if at := d.at(shown); at.After(begin) && !at.After(end) {
				want = append(want, at)
			}
		}
		slices.SortFunc(want, time.Time.Compare)
		want = slices.CompactFunc(want, time.Time.Equal)
		var got []time.Time
		for at := d.next(begin); !at.After(end); at = d.next(at) {
			got = append(got, at)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("from %v:\n%v, want\n%v", begin, got, want)
		}
	})
}
