package main

const (
	schedules = "consumer/schedule"
	ticking   = schedules + "/reader.go"
	dueTicks  = schedules + "/due.go"
)

var guardsOfSchedules = []guard{
	{"R5", "a run is over before its last step", []edit{
		{ticking, "if r.isOver(m.Offset) {", "if r.isOver(m.Offset) || true {"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"R5", "a tenure is asked for the next batch before the last one was applied", []edit{
		{owning, "\tselect {\n\tcase out := <-o.outcome:", "\tif o.running(o.claim) {\n\t\tgo func() { <-o.outcome }()\n\t\treturn outcome{action: advance}\n\t}\n\tselect {\n\tcase out := <-o.outcome:"},
	}, "consumer", "TestATenureIsAskedForTheNextBatchOnceTheLastOneWasApplied"},
	{"R5", "a step begins without the position after the one before", []edit{
		{ticking, "b.Next, b.Mark, b.End = m.Offset+1, between, 0", "b.Mark, b.End = between, 0"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"R5", "a new owner leaves the rest of a run out", []edit{
		{ticking, "if r.mark != epoch.NoMark {", "if r.mark == requested {"},
	}, schedules, "TestALongJobContinuesAfterItsLastStepInAnotherProcess"},
	{"blame", "the rest of a run follows a step that was put among the dead letters", []edit{
		{schedules + "/schedule.go", "j.course.returned(m.Offset, true, m.Under.Claim)", "j.course.returned(m.Offset, false, m.Under.Claim)"},
	}, schedules, "TestAStepThatOnFailureTakesEndsTheRun"},
	{"blame", "the replay of a step ends the present run", []edit{
		{schedules + "/schedule.go", "if m.Replay != 0 {", "if false {"},
	}, schedules, "TestTheReplayOfAStepLeavesThePresentRunAlone"},
	{"R5", "what this process knows of a step counts for one that another has committed", []edit{
		{schedules + "/course.go", "if c.by == claim {", "if c.by == claim || true {"},
	}, schedules, "TestAStepThatFailedHereAndWasCommittedElsewhereIsFollowedByTheNext"},
	{"R10", "a skip to the middle of a tick runs it", []edit{
		{schedules + "/tick.go", "if p.step > 0 && mark == epoch.NoMark {", "if false {"},
	}, schedules, "TestAPositionThatIsNoWholeSecondIsRoundedUp"},
	{"R10", "a machine that was suspended at work leaves out what it missed", []edit{
		{ticking, "r.busy.to = r.busy.from.Add(time.Since(r.began))", "r.busy.to = r.now()"},
	}, schedules, "TestAMachineThatIsSuspendedAtWorkRunsTheLastTickLate"},
	{"blame", "ticks that are left out for a halted one are said at each retry", []edit{
		{ticking, "!r.course.isNews(r.at.at, d.run)", "false"},
	}, schedules, "TestTicksThatAreLeftOutForAHaltedOneAreSaidOnce"},
	{"R10", "a position far ahead of the clock is waited for", []edit{
		{ticking, "ahead > mostAhead", "ahead < 0 && ahead > 0"},
	}, schedules, "TestAPositionFarAheadOfTheClockHaltsTheJob"},
	{"R13", "a run takes as long as it likes", []edit{
		{ticking, "worked > r.plan.maxRun", "worked < 0"},
	}, schedules, "TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt"},
	{"R13", "the work on a run is not counted", []edit{
		{schedules + "/course.go", "c.took += d", "_ = d"},
	}, schedules, "TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt"},
	{"blame", "the halt of a run that is too long says that it passes by itself", []edit{
		{"consumer/reason.go", "\t\t{ErrBlocked, ReasonBlocked},\n", ""},
	}, schedules, "TestARunThatTakesLongerThanMaxRunHaltsUntilAnOperatorSkipsIt"},
	{"R5", "a requested run is a tick after its first step", []edit{
		{ticking, "b.Mark = requested", "b.Mark = between"},
	}, schedules, "TestAnOperatorRunsAJobNow"},
	{"R5", "a run is requested in the middle of another", []edit{
		{"operate/job.go", "\tcase step > 0:", "\tcase false:"},
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
