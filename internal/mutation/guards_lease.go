package main

const (
	leases   = "lease"
	owned    = "lease/owned.go"
	register = "lease/registration.go"
	expiry   = "lease/expiry.go"
	pictures = "lease/picture.go"
	viewing  = "lease/view.go"
	balances = "lease/balance.go"
	holding  = "lease/held.go"
	members  = "lease/member.go"
	acquires = "lease/acquire.go"
	records  = "lease/record.go"
	locking  = "lease/claimed.go"
	foreign  = "lease/strangers.go"

	// The suite of leases, on a store in memory.
	leaseSuite  = "lease/leasetest"
	onReporting = "TestLeasesOnAStoreThatReportsChanges/"

	byStrangers = "TestWhatStrangersPutIntoTheStoreIdlesNoResourceForLong/"
)

var guardsOfLeases = []guard{
	{"blame", "a store that is gone is not asked for when a watch fails", []edit{
		{viewing, `v.source = "" // so`, `_ = v.source // so`},
	}, "lease", "TestAStoreThatVanishesUnderAWatchIsAskedFor"},
	{"R2", "a confirmation is not asked of the store", []edit{
		{holding, "return h.renew(ctx)", "return h.item.item, nil"},
	}, leases, "TestAConfirmationHasALaterGenerationAndARefusedOneNone"},
	{"R2", "whatever a lease's key holds is adopted", []edit{
		{owned, "case !o.isOurs(now):", "case false:"},
	}, leases, "TestAnItemThatIsGoneOrAnothersIsLost"},
	{"R2", "the nonce of a lease is not compared", []edit{
		{owned, "r.Nonce == o.nonce", "r.Nonce != \"\""},
	}, leases, "TestAnItemThatIsGoneOrAnothersIsLost"},
	{"R2", "a live lease of another is acquired", []edit{
		{owned, "if !o.isOurs(now) {", "if false {"},
	}, leases, "TestAnItemOfAnotherIsNeverTaken"},
	{"R2", "a lease that was released is written again", []edit{
		{owned, "if o.over {", "if false {"},
	}, leases, "TestWhatWasReleasedOrRemovedIsNotWrittenAgain"},
	{"R2", "a lease is taken because a view lacks its registration", []edit{
		{balances, "if last.item.Live && last.Member != \"\" && !m.isMine(last.Member) {", "if false {"},
	}, leases, "TestALeaseIsNotTakenBecauseAViewLacksItsRegistration"},
	{"R2", "an answer that lacks a registration is believed", []edit{
		{register, "ended, err := m.endOf(ctx, now, \"\")", "ended, err := now, error(nil)"},
	}, leases, "TestARegistrationThatAnAnswerLacksIsNotGone"},
	{"R2", "a registration that an answer lacks is ended, whoever has written it", []edit{
		{register, "ended, err := m.endOf(ctx, now, \"\")", "now, _ = m.store.Get(ctx, now.Key)\n\tended, err := m.endOf(ctx, now, \"\")"},
	}, leases, "TestARegistrationThatAnAnswerLacksIsNotGone"},
	{"R2", "a registration that is there is taken for gone", []edit{
		{register, "return !now.Live || registrationOf(now.Value).Ended, nil", "return true, nil"},
	}, leases, "TestARegistrationIsGoneOnceItWasEndedOrDeleted"},
	{"R2", "a registration that is gone comes back", []edit{
		{pictures, "was, known := p.members[id]\n\tif known && isOlder(item, was.item) {", "was, known := p.members[id]\n\tif false {"},
	}, leases, "TestALeaseLastsAsLongAsTheRegistrationThatItNames"},
	{"R2", "a member registers under an id that it had", []edit{
		{register, "if m.registered > 1 {", "if false {"},
	}, leases, "TestLeasesGoWithTheRegistrationThatTheyName"},
	{"R2", "what has ended a registration is deleted before all members have seen it", []edit{
		{expiry, "return fullReads * m.termOf(r.memberRecord)", "return m.termOf(r.memberRecord)"},
	}, leases, "TestTheRegistrationOfTheDeadIsEndedAndDeletedOnceAllHaveSeenIt"},
	{"R2", "a registration is ended that was renewed meanwhile", []edit{
		{expiry, "ended, err = m.endOf(ctx, r.item, r.Name)", "r.item, _ = m.store.Get(ctx, key)\n\t\tended, err = m.endOf(ctx, r.item, r.Name)"},
	}, leases, "TestAMemberIsNotEndedBecauseAViewIsLate"},
	{"R2", "a registration is ended before its TTL is over", []edit{
		{expiry, "time.Since(r.since) < m.patience(r)", "time.Since(r.since) < m.patience(r)/2"},
	}, leases, "TestTheRegistrationOfTheDeadIsEndedAndDeletedOnceAllHaveSeenIt"},
	{"R2", "a member with a longer TTL is taken for dead", []edit{
		{records, "return max(m.TTL, time.Duration(r.TTL)*time.Millisecond)", "return m.TTL"},
	}, leaseSuite, onReporting + "a member with a longer TTL is not robbed by one with a shorter"},
	{"R2", "a value that is no lease is taken for a free one", []edit{
		{pictures, "(h.isStrange || h.Member != \"\" && p.isRegistered(h.Member))", "h.Member != \"\" && p.isRegistered(h.Member)"},
	}, leases, "TestAValueThatIsNoLeaseIsHeldByNobodyWeKnow"},
	{"R2", "what is no lease is overwritten at once", []edit{
		{foreign, "h.item.Live && h.isStrange && time.Since(h.since) >= m.TTL", "h.item.Live && h.isStrange"},
	}, leases, "TestAStrangeValueIsLeftAloneForALeasesTerm"},
	{"R2", "any value without a member is taken for a lease that was released", []edit{
		{records, "r.Member == \"\" && r.Generation == 0 ||", ""},
	}, leases, byStrangers + "lease/an object"},
	{"R2", "a key that is written another way is taken for a resource's", []edit{
		{"lease/keys.go", "err == nil && k.resource(r) == key", "err == nil"},
	}, leases, "TestKeysAreWhatTheDocumentationSays"},

	{"R5", "a refusal is explained by an older answer, and the request sent again", []edit{
		{owned, "for n := 0; n < lags && err == nil && o.refused && now.Version == o.item.Version; n++ {", "for false {"},
	}, leases, "TestARefusalIsNotExplainedByAnOlderAnswer"},
	{"R5", "a refusal for a write that the store has lost is taken for the last word", []edit{
		{owned, "n < lags && err == nil", "err == nil"},
	}, leases, "TestARefusalIsForgottenWithTheWriteForWhichItWas"},
	{"R5", "requests of one lease overtake each other", []edit{
		{owned, "case o.turn <- struct{}{}:", "default:"},
		{owned, "{ <-o.turn }", "{ _ = o.turn }"},
	}, leases, "TestTwoRequestsOfOneItemDoNotOvertakeEachOther"},

	{"R6", "a member whose registration is gone keeps its leases", []edit{
		{register, "r.over(fmt.Errorf(\"%w: %v\", errUnregistered, err))", "_ = fmt.Errorf(\"%w: %v\", errUnregistered, err)"},
	}, leases, "TestLeasesGoWithTheRegistrationThatTheyName"},
	{"R6", "a member does not hear that its registration was ended", []edit{
		{balances, "if r, known := now.members[me.id]; known && r.Ended {", "if r, known := now.members[me.id]; known && r.Ended && false {"},
	}, leases, "TestAMemberHearsSoonThatItsRegistrationWasEnded"},
	{"R6", "a holder does not hear that its lease was taken", []edit{
		{balances, "\tm.verifyHeld(now)\n", ""},
	}, leases, "TestAHolderHearsOfALeaseThatIsNotItsOwnAnyMore"},
	{"R6", "a lease that the store says is another's is kept", []edit{
		{holding, "h.lose(err)\n\t\th.m.view.refresh()", "h.m.view.refresh()"},
	}, leases, "TestAConfirmationHasALaterGenerationAndARefusedOneNone"},
	{"R6", "a lease that is used is taken for one of nobody", []edit{
		{balances, "|| sl == nil || sl.busy ||", "|| sl == nil ||"},
	}, leases, "TestALostRenewalOfTheRegistrationCostsNoLease"},
	{"R6", "a member that leaves gives up its registration before its leases", []edit{
		{members, "m.workers.Wait()\n\t\tclose(done)", "close(done)"},
	}, leases, "TestAMemberThatLeavesKeepsItsLeasesUntilTheyAreGivenBack"},

	{"R7", "a confirmation counts that is answered after the lease has ended", []edit{
		{holding, "if over := h.Err(); over != nil {", "if over := h.Err(); over != nil && false {"},
	}, leases, "TestAConfirmationWhoseAnswerComesAfterTheDeadlineCountsAsLost"},
	{"R7", "a holder begins while another of its resource has not returned", []edit{
		{balances, "sl != nil && !sl.busy && time.Now()", "sl != nil && time.Now()"},
		{balances, "case sl.busy:", "case sl.busy && sl.held != nil && sl.held.held.Err() == nil:"},
	}, leases, "TestNoHolderBeginsBeforeTheOneBeforeItHasReturned"},
	{"R7", "a process has a lock twice", []edit{
		{acquires, "|| sl.busy ||", "||"},
	}, leases, "TestAProcessHasOneLeaseOfALockAtATime"},
	{"R7", "a resource that is shared is taken as a lock", []edit{
		{acquires, "; shared || name == \"\" {", "; shared && false || name == \"\" {"},
	}, leases, "TestAcquireOfANameThatIsSharedIsRefused"},
	{"R7", "a lease is released while its holder has it", []edit{
		{holding, "h.lose(lost(errEnded))\n\t\terr = h.release(ctx, why)", "err = h.release(ctx, why)\n\t\th.lose(lost(errEnded))"},
	}, leases, "TestAReleaseLosesTheLeaseBeforeItWrites"},
	{"R7", "a member deregisters while its locks are held", []edit{
		{register, "r.over(ErrClosed)\n\t\t\tm.deregister(r)", "m.deregister(r)"},
	}, leases, "TestCloseLosesLocksBeforeItDeregisters"},

	{"R12", "what a member declined because a handler hangs it takes again", []edit{
		{balances, "if sl.declined && !sl.hung {", "if sl.declined {"},
	}, leases, "TestWhatIsDeclinedIsNotTakenAgainBeforeItMayBe"},

	{"R13", "renewals are rarer than the TTL", []edit{
		{register, "every := m.TTL / 3", "every := m.TTL * 2"},
	}, leases, "TestALostRenewalOfTheRegistrationCostsNoLease"},
	{"R13", "a lease without acknowledgements lasts beyond the TTL", []edit{
		{owned, "return ttl * 9 / 10", "return ttl * 12 / 10"},
	}, leaseSuite, onReporting + "leases of a member that is cut off are taken once it has given them up itself"},
	{"R13", "only the store ends a registration", []edit{
		{register, "\t\tr.over(ErrExpired)\n", ""},
	}, leases, "TestADeadlineThatNoTimerHasNoticedCounts"},
	{"R13", "a deadline counts once a timer has noticed it", []edit{
		{holding, "_ = h.under.err()", ""},
	}, leases, "TestADeadlineThatNoTimerHasNoticedCounts"},
	{"R13", "a lease counts from when the answer came", []edit{
		{owned, "err == nil {\n\t\t\to.wrote(item, sent)\n\t\t}", "err == nil {\n\t\t\to.wrote(item, time.Now().Add(0*time.Until(sent)))\n\t\t}"},
	}, leases, "TestAnItemCountsFromWhenItsRenewalWasSent"},
	{"R13", "a new lease counts from when the answer came", []edit{
		{owned, "o.wrote(item, sent)\n\t\treturn item, nil", "o.wrote(item, time.Now().Add(0*time.Until(sent)))\n\t\treturn item, nil"},
	}, leases, "TestAnItemCountsFromWhenItsRenewalWasSent"},
	{"R13", "what was adopted extends the lease", []edit{
		{owned, "o.generation = max(o.generation, generationOf(now))", "o.generation, o.deadline = max(o.generation, generationOf(now)), time.Now().Add(term(o.ttl))"},
	}, leases, "TestAnAdoptedItemDoesNotExtendTheDeadline"},
	{"R13", "an acquisition that was adopted counts from when it was found", []edit{
		{owned, "o.item = now\n\treturn o.renew(ctx, v)", "o.wrote(now, time.Now())\n\treturn now, nil"},
	}, leases, "TestAnAcquisitionThatIsAdoptedCountsFromItsRenewal"},
	{"R13", "one lost answer uses the lease up", []edit{
		{owned, "min(max(o.ttl/6, 500*time.Millisecond), o.ttl/3)", "o.ttl"},
	}, leases, "TestALostAnswerLeavesTimeForAnotherRequest"},
	{"R13", "a renewal needs more room than the one before", []edit{
		{owned, "max(0, most-beside)", "max(0, most-most*beside)"},
	}, leases, "TestARenewalIsAsLargeAsTheOneBefore"},
	{"R13", "a registration that has more to tell needs room for it", []edit{
		{register, "if err != nil && !errors.Is(err, ErrLost) && len(data) > len(r.fits) {", "if err != nil && !errors.Is(err, ErrLost) && len(data) > len(r.fits) && false {"},
	}, leases, "TestAFullStoreStillRenewsARegistrationThatHasMoreToTell"},
	{"R13", "a store that deletes items deletes leases that are held", []edit{
		{owned, "if o.dies {", "if true {"},
	}, leases, "TestAStoreMayDeleteRegistrationsAndNoLeases"},
	{"R13", "a drain of a lease may overrun", []edit{
		{holding, "h.lose(lost(ErrDrainOverrun))", "_ = lost(ErrDrainOverrun)"},
	}, leases, "TestWhatIsNotGivenBackInTimeIsLost"},
	{"R13", "a lock that is acquired while Run ends is kept", []edit{
		{acquires, "\tif m.closing {\n\t\th.giveBack()\n\t}\n", ""},
	}, leases, "TestALockIsToBeGivenBackWhenRunEnds"},
	{"R13", "a holder keeps its lease without progress", []edit{
		{holding, "if m.MaxStall > 0 {", "if false {"},
	}, leases, "TestAHolderWithoutProgressLosesItsLease"},
	{"blame", "a holder that makes progress loses its lease", []edit{
		{holding, " - time.Duration(h.progress.Load())", ""},
	}, leases, "TestAHolderWithoutProgressLosesItsLease"},

	{"blame", "a resource that nobody took and that is ours again keeps others from their share", []edit{
		{balances, "case m.pace > 0 && m.isOursAgain(h):", "case false && m.isOursAgain(h):"},
	}, leases, "TestAMemberThatJoinsAfterOneThatNeverTookItsShareGetsIts"},
	{"blame", "a lease of ours that nothing uses is left alone", []edit{
		{balances, "if last.item.Live && last.Member != \"\" && !m.isMine(last.Member) {", "if last.item.Live && last.Member != \"\" {"},
	}, leases, "TestALeaseOfOursThatNothingUsesIsTakenAgain"},
	{"blame", "a lease of ours that is not wanted is left alone", []edit{
		{balances, "\tm.releaseOrphans(now)\n", ""},
	}, leases, "TestAnOrphanThatIsNotWantedIsReleased"},
	{"blame", "a holder keeps a resource by not returning", []edit{
		{holding, "context.AfterFunc(h.held, h.abandon)", "_ = h.abandon"},
	}, leases, "TestAHolderThatDoesNotReturnKeepsTheResourceForATTLAndNoOtherBeginsBesideIt"},
	{"blame", "a lease outlives the registration that it names", []edit{
		{pictures, "return known && !m.Ended", "return known || m.Ended"},
	}, leases, "TestALeaseLastsAsLongAsTheRegistrationThatItNames"},
	{"blame", "the registration of the dead lives for ever", []edit{
		{balances, "\tm.endDead(now)\n", ""},
	}, leases, "TestTheRegistrationOfTheDeadIsEndedAndDeletedOnceAllHaveSeenIt"},
	{"blame", "a TTL of years is waited for", []edit{
		{records, "if r.TTL < 0 || r.TTL > mostTTL.Milliseconds() {", "if false {"},
	}, leases, byStrangers + "registration/a TTL of years"},
	{"blame", "a value that is no lease keeps its resource idle for good", []edit{
		{balances, "!m.isMine(h.Member) && !m.isAbandoned(h) {", "!m.isMine(h.Member) {"},
	}, leases, "TestAStrangeValueIsLeftAloneForALeasesTerm"},
	{"blame", "what is no lease keeps a lock for good", []edit{
		{acquires, "!m.isMine(last.Member) && !m.isAbandoned(last):", "!m.isMine(last.Member):"},
	}, leases, "TestAStrangeValueIsLeftAloneForALeasesTerm"},
	{"blame", "a generation that cannot grow is continued", []edit{
		{records, "|| r.Generation > mostGeneration ||", "||"},
	}, leases, byStrangers + "lease/a generation that leaves no room to grow"},
	{"blame", "a strange value that is written again and again is not said", []edit{
		{pictures, "if h.isStrange && before.isStrange {", "if false {"},
	}, leases, "TestAStrangeValueThatIsWrittenAgainAndAgainIsSaid"},
	{"blame", "a registration that no member can have written is believed", []edit{
		{foreign, "if sum <= most && int64(len(r.Declined)) <= sum {", "if true {"},
	}, leases, byStrangers + "registration/many that it does not want"},
	{"blame", "a member declines what it does not share, and is not believed", []edit{
		{register, "sl.declined && shared {", "sl.declined && (shared || true) {"},
	}, leases, "TestALockThatIsDeclinedIsNotToldToOthers"},
	{"blame", "a lease that names a member that does not serve its resource stays", []edit{
		{balances, "\tm.releaseUnserved(now)\n", ""},
	}, leases, "TestALeaseThatNamesAMemberThatDoesNotServeItsResourceIsReleased"},
	{"blame", "settings that lose items end no lease", []edit{
		{members, "case errors.Is(err, cas.ErrUnsuitable):", "case errors.Is(err, cas.ErrUnsuitable) && false:"},
	}, leases, "TestSettingsThatLoseItemsEndTheLeasesUntilTheRemedy"},
	{"blame", "a store that was restored is not read anew", []edit{
		{viewing, "now != \"\" && now != v.source {", "now != \"\" && now != v.source && false {"},
	}, leases, "TestAViewOfAStoreThatWasRestoredIsReadAnewWithinATTL"},
	{"blame", "a full read makes a dead registration young", []edit{
		{pictures, "case ok && now.item.Version == before.item.Version:", "case ok && false:"},
	}, leases, "TestAFullReadDoesNotForgetHowLongAKeyHasStood"},
	{"blame", "a full read makes what is no lease young", []edit{
		{pictures, "case ok:\n\t\t\tp.leases[at]", "case ok && false:\n\t\t\tp.leases[at]"},
	}, leases, "TestAFullReadDoesNotForgetHowLongAKeyHasStood"},
	{"blame", "a change that repeats what is known makes a registration young", []edit{
		{pictures, "if known && was.item.Version == item.Version {", "if false {"},
	}, leases, "TestAChangeThatRepeatsWhatIsKnownIsNotNewer"},
	{"blame", "what was learnt of a lease is forgotten by an older list", []edit{
		{pictures, "case before.known.After(asked) && !isOlder(before.item, now.item):\n\t\t\tp.leases[at] = before", "case false:\n\t\t\tp.leases[at] = before"},
	}, leases, "TestWhatWasLearntSinceTheStoreWasAskedSurvivesAnOlderListAndNoNewerOne"},
	{"blame", "an older list replaces a newer answer about a member", []edit{
		{pictures, "case before.known.After(asked) && !isOlder(before.item, now.item):\n\t\t\tp.members[id] = before", "case false:\n\t\t\tp.members[id] = before"},
	}, leases, "TestWhatWasLearntSinceTheStoreWasAskedSurvivesAnOlderListAndNoNewerOne"},
	{"blame", "what was learnt of a lease hides a list with a higher number", []edit{
		{pictures, "case before.known.After(asked) && !isOlder(before.item, now.item):\n\t\t\tp.leases[at] = before", "case before.known.After(asked):\n\t\t\tp.leases[at] = before"},
	}, leases, "TestWhatWasLearntSinceTheStoreWasAskedSurvivesAnOlderListAndNoNewerOne"},
	{"blame", "an older answer about a member replaces a list with a higher number", []edit{
		{pictures, "case before.known.After(asked) && !isOlder(before.item, now.item):\n\t\t\tp.members[id] = before", "case before.known.After(asked):\n\t\t\tp.members[id] = before"},
	}, leases, "TestWhatWasLearntSinceTheStoreWasAskedSurvivesAnOlderListAndNoNewerOne"},
	{"blame", "a lease as it was hides what is known", []edit{
		{pictures, "was, known := p.leases[at]\n\tif known && isOlder(item, was.item) {", "was, known := p.leases[at]\n\tif false {"},
	}, leases, "TestAnOlderAnswerDoesNotHideWhatIsKnownAndAsksForAFullRead"},
	{"blame", "an answer from before what is known does not show that the store is another one", []edit{
		{viewing, "if isOlder(item, was) {\n\t\tv.refresh()", "if isOlder(item, was) {"},
	}, leases, "TestAnOlderAnswerDoesNotHideWhatIsKnownAndAsksForAFullRead"},
	{"blame", "a member that meets with a late view waits", []edit{
		{balances, "if m.view.learn(now) && now.Version != seen.Version {", "if m.view.learn(now) && false {"},
	}, leases, "TestAnAcquisitionThatMeetsWithALateViewIsMadeAgainAtOnce"},
	{"blame", "a member that takes a lock again and again starves those who wait", []edit{
		{"lease/turn.go", "if look > 0 && time.Since(sl.since) >= look {", "if false {"},
	}, leaseSuite, "TestLeasesOnAStoreThatDoesNotReportChanges/members that take a lock again and again take turns"},
	{"blame", "a registration that was ended is no change of the members", []edit{
		{pictures, "return a.Ended == b.Ended", "return true"},
	}, leases, "TestTheMembersChangeWhenOneJoinsIsEndedOrLeaves"},
	{"blame", "a member gives resources back all at once", []edit{
		{balances, "min(len(give), m.pace-len(m.handing))", "len(give)"},
	}, leases, "TestResourcesAreGivenBackOneAfterTheOther"},
	{"blame", "resources that nobody takes are given back for ever", []edit{
		{balances, "\t\tm.pace = 0\n", ""},
	}, leases, "TestWhatIsGivenBackAndNotTakenCostsOneResourceARestAndNoMore"},
	{"blame", "a process that crashes again and again is given its share each time", []edit{
		{"lease/trial.go", "m.onTrial = m.trialLeft(now) > 0", "m.onTrial = false"},
	}, leases, "TestAProcessThatCrashesAgainAndAgainLeavesLittleIdle"},
	{"blame", "the first of several members that start takes everything", []edit{
		{members, "if m.isFirst() {", "if false {"},
	}, leases, "TestMembersThatStartTogetherShareWithoutMoves"},
	{"blame", "members that cannot start are given resources", []edit{
		{members, "limited(m.view.ask), limited(m.tryGet), m.view.start, m.begin, limited(m.register)", "limited(m.register), limited(m.view.ask), limited(m.tryGet), m.view.start, m.begin"},
	}, leases, "TestAMemberThatCannotStartIsNotRegistered"},
	{"blame", "nobody is told that a process is no member any more", []edit{
		{register, "silent >= within {", "silent >= within && false {"},
	}, leases, "TestTheOwnerIsToldWhenItIsAMemberAndWhenItIsNot"},
	{"blame", "shares do not follow from who serves what", []edit{
		{"internal/shares/shares.go", "for f.improve() {", "for false {"},
	}, leases, "TestMembersThatServeDifferentStreamsShareOutFairlyWithTheFewestMoves"},
	{"blame", "a free resource is taken by whoever sees it", []edit{
		{"lease/plan.go", "ours && to == me {", "ours && k.serves[me] {"},
	}, leases, "TestWhatAnotherDoesNotTakeIsTakenInItsPlace"},
	{"R2", "a lock is claimed under a lease that is not confirmed", []edit{
		{locking, "generation, err := c.prove(ctx)", "generation, err := c.Generation(), error(nil)"},
	}, leases, "TestWhoHasLostTheLeaseWithoutKnowingItClaimsNothing"},
	{"R5", "work whose answer was lost is done again", []edit{
		{locking, "if got.Next > d.under.Next {", "if false {"},
	}, leases, "TestAnAnswerThatWasLostIsFoundOut"},
	{"R5", "work whose answer was lost counts as done", []edit{
		{locking, "if got.Next > d.under.Next {", "if true {"},
	}, leases, "TestAnAnswerThatWasLostIsFoundOut"},
	{"R5", "another's work is taken for one whose answer was lost", []edit{
		{locking, "if d == nil || !slices.Contains(d.ours, seen.Claim) {", "if d == nil {"},
	}, leases, "TestTheWorkOfAnotherIsNotTakenForOurs"},
	{"R5", "work whose transaction an operator has ended is in doubt", []edit{
		{locking, "d.sees(seen)", "_ = d"},
	}, leases, "TestAPauseDuringTheWorkLeavesNoDoubt"},
	{"R5", "work is done under an epoch that a store has seen passed", []edit{
		{locking, "return claimAgain, low.Seen", "return claimAgain, low.Epoch"},
	}, leases, "TestWhatPassesIsTriedAgain"},
	{"blame", "work that returns another refusal is done for ever", []edit{
		{locking, "case isLow && low.Partition == p:", "case isLow && (low.Partition == p || isLow):"},
		{locking, "case isStale && stale.Partition == p, isMoved && moved.Partition == p:", "case isStale && (stale.Partition == p || isStale), isMoved && (moved.Partition == p || isMoved):"},
	}, leases, "TestARefusalOfSomethingElseIsTheErrorOfWork"},
	{"blame", "work that loses its connection each time is done for ever", []edit{
		{locking, "if losses++; losses == enoughLost {", "if losses++; losses == enoughLost && false {"},
	}, leases, "TestWorkThatLosesItsConnectionEachTimeEnds"},
	{"R1", "the work of a lock goes to a store without transactions", []edit{
		{locking, "if g := sink.Guarantee(); g < epoch.Transactional {", "if g := sink.Guarantee(); g < 0 {"},
	}, leases, "TestAStoreWithoutTransactionsIsRefused"},
	{"R6", "the work of a lock that was released is committed", []edit{
		{locking, "if err := c.Err(); err != nil {\n\t\treturn err\n\t}\n\tif c.doubt", "if c.doubt"},
	}, leases, "TestALongJobCommitsItsStepsUnderOneClaim"},
	{"blame", "a lock is not well while nobody has it", []edit{
		{"cmd/epochfence/findings.go", "case isLock(s.ps[i].Fence):", "case false:"},
	}, "cmd/epochfence", "TestALockIsWellWithoutAnOwnerOrALog"},
	{"blame", "a lease that was lost is told as released", []edit{
		{holding, "if errors.Is(cause, errEnded) {", "if true {"},
	}, leases, "TestEventsTellWhyALeaseWasLostAndWhetherItsHolderWasAtWork"},
	{"blame", "a lease that was lost in the middle of work is told as lost in idle", []edit{
		{holding, "h.caught.Store(true)", "h.caught.Store(false)"},
	}, leases, "TestALeaseThatIsFoundLostAfterTheWorkWasLostDuringTheWork"},
	{"blame", "a lock that was lost in the middle of what it is for is told as lost in idle", []edit{
		{holding, "|| h.alone && !h.claimed.Load()", ""},
	}, leases, "TestEventsTellWhyALeaseWasLostAndWhetherItsHolderWasAtWork"},
	{"blame", "the end of a lease is told after the next one has begun", []edit{
		{holding, "err = h.release(ctx, why)\n\t\th.tellEnd()", "err = h.release(ctx, why)"},
	}, leases, "TestTheEndOfALeaseIsToldBeforeTheNextOneBegins"},
	{"blame", "work that has panicked is told as committed", []edit{
		{locking, "TTL: c.m.TTL, Outcome: OutcomeFailed, Gap:", "TTL: c.m.TTL, Gap:"},
	}, leases, "TestEachTransactionOfWorkIsTold"},
	{"blame", "a refusal is told with the gap of the claims", []edit{
		{locking, "if by > e.Epoch {\n\t\te.Gap = int64(by - e.Epoch)\n\t}", "_ = by"},
	}, leases, "TestTheGapIsThatOfTheClaimsAndAfterARefusalThatOfTheFence"},
	{"blame", "the gap of work that is not refused is not told", []edit{
		{locking, "if c.gap = 0; seen.Epoch > 0 {", "if c.gap = 0; false {"},
	}, leases, "TestTheGapIsThatOfTheClaimsAndAfterARefusalThatOfTheFence"},
	{"blame", "a refusal of a zombie is told as a lost lease", []edit{
		{"lease/event.go", "case refusal != RefusalNone:", "case refusal != RefusalNone && !lost:"},
	}, leases, "TestTheGapIsThatOfTheClaimsAndAfterARefusalThatOfTheFence"},
}
