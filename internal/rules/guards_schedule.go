package main

const (
	schedules = "consumer/schedule"
	ticking   = schedules + "/reader.go"
	dueTicks  = schedules + "/due.go"
)

var guardsOfSchedules = []guard{
	{"R5", "a run is over before its last step", []edit{
		{ticking, "if r.course.isOver(m.Offset, r.epoch) {", "if true {"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"R5", "a step begins without the position after the one before", []edit{
		{ticking, "next.Next, next.Mark = m.Offset+1, r.mark", "next.Next, next.Mark = r.at.after().offset(), r.mark"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"R5", "a new owner leaves the rest of a run out", []edit{
		{ticking, "if r.at.step > 0 || r.mark == requested {", "if r.mark == requested {"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"blame", "the rest of a run follows a step that was put among the dead letters", []edit{
		{schedules + "/course.go", "c.step, c.last, c.failed = step, true, e", "c.step, c.last, c.failed = step, false, e"},
	}, schedules, "TestAStepThatOnFailureTakesEndsTheRun"},
	{"R5", "a step that failed in one process ends the run that another process has continued", []edit{
		{schedules + "/course.go", "return c.step == step && c.last && (c.failed == 0 || c.failed == present)", "return c.step == step && c.last"},
	}, schedules, "TestAStepThatFailedHereAndWasDoneElsewhereDoesNotEndTheRun"},
	{"blame", "the replay of a step ends the present run", []edit{
		{schedules + "/schedule.go", "if m.Replay != 0 {", "if false {"},
	}, schedules, "TestTheReplayOfAStepLeavesThePresentRunAlone"},
	{"R10", "a position far ahead of the clock is waited for", []edit{
		{ticking, "ahead > mostAhead", "ahead < 0 && ahead > 0"},
	}, schedules, "TestAPositionFarAheadOfTheClockHaltsTheJob"},
	{"L7", "a run takes as long as it likes", []edit{
		{ticking, "worked > r.plan.maxRun", "worked < 0"},
	}, schedules, "TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt"},
	{"L7", "a run that has halted begins with a new MaxRun", []edit{
		{schedules + "/course.go", "if p.step == 0 || !p.at.Equal(c.tick) {", "if true {"},
	}, schedules, "TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt"},
	{"R5", "a requested run is a tick after its first step", []edit{
		{ticking, "next.Next, next.Mark = m.Offset+1, r.mark", "next.Next, next.Mark = m.Offset+1, epoch.NoMark"},
	}, schedules, "TestAnOperatorRunsAJobNow"},
	{"R5", "a run is requested in the middle of another", []edit{
		{schedules + "/request.go", "case at.step > 0:", "case false:"},
	}, schedules, "TestARequestIsRefusedWhereItWouldBreakARun"},
	{"R10", "ticks that came while the job worked are run as if it had not", []edit{
		{dueTicks, "return t.After(s.from) && !t.After(s.to)", "return false"},
	}, schedules, "TestWhatFollowsAtAPosition"},
	{"R10", "ticks that nobody ran are forgotten", []edit{
		{dueTicks, "run := p.choose(begin, now, busy)", "run := p.choose(now, now, busy)"},
	}, schedules, "TestWhatFollowsAtAPosition"},
	{"R10", "a time that clocks show twice is two ticks", []edit{
		{schedules + "/timetable.go", "if spec.Hour&anyHour != 0 {", "if true {"},
	}, schedules, "TestClocksThatAreSetForwardAndBack"},
	{"R10", "a time that clocks leave out is no tick", []edit{
		{schedules + "/timetable.go", "if next := shown.Add(-offset); d.offset(next) == offset && d.offset(t.Add(-mostShift)) == offset {", "if next := shown.Add(-offset); true {"},
	}, schedules, "TestTheTicksAreTheTimesThatClocksShow"},
}
