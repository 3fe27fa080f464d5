package mutation

const (
	kafka    = "consumer/kafkasource"
	nats     = "consumer/natssource"
	owned    = "lease/owned.go"
	register = "lease/registration.go"
	balances = "lease/balance.go"
	held     = "lease/held.go"
	locking  = "lease/claimed.go"
)

// Where leases are granted, confirmed and lost: the sources, and package lease.
var guardsOfLeases = []guard{
	{"R2", "a confirmation is not requested from the bucket", []edit{{"consumer/internal/leased/tenure.go", "return t.lease.Confirm(ctx)", "_ = ctx\n\treturn t.lease.Generation(), nil"}},
		nats, "TestConfirmIsARenewalWithALaterNumber"},

	{"R7", "a confirmation counts although the tenure ended meanwhile", []edit{
		{kafka + "/tenure.go", "over := t.err(); over != nil {", "over := t.err(); over != nil && false {"},
		{kafka + "/commits.go", "\tcase <-t.WhenLost():\n\t\treturn 0, t.Lost()\n", ""},
	}, kafka, "TestR7AYesToATenureThatEndedMeanwhileIsANo"},
	{"R7", "a new member confirms what the old one was granted", []edit{{kafka + "/commits.go", "case member != one.t.member:", "case false:"}},
		kafka, "TestR7ANewMemberDoesNotConfirmWhatTheOldOneWasGranted"},
	{"R7", "a tenure does not wait for the one before the last", []edit{{"consumer/internal/tenures/state.go", "if s.previous == nil {\n\t\tclose(s.clear)", "if true {\n\t\tclose(s.clear)"}},
		kafka, "TestR7OwnIsNotCalledBesideThatOfTheTenureBeforeTheLast"},

	{"R8", "a position below what others had committed is committed to Kafka", []edit{{"consumer/internal/tenures/position.go", "at.Epoch > 0 && at.Next >= *p.theirs", "at.Epoch > 0"}},
		kafka, "TestSuite/cooperative-sticky/a position that the group had committed through others is not taken back before ours has passed it"},

	{"R9", "a Kafka partition of which nothing was applied cannot begin behind its retention", []edit{{kafka + "/tenure.go", "if from.Applied || !errors.As", "if true || !errors.As"}},
		kafka, "TestSuite/cooperative-sticky/a partition of which nothing was applied begins where its log begins by then"},

	{"R10", "retention may take what was not applied", []edit{{kafka + "/feed.go", "if r.Offset > f.next && p.LogStartOffset > f.next && !f.fresh {", "if false {"}},
		kafka, "TestAGapBelowTheStartOfTheLogIsAnError"},
	{"R10", "Kafka does not get the leader epoch", []edit{{kafka + "/feed.go", "kgo.NewOffset().At(f.next).WithEpoch(f.epoch)", "kgo.NewOffset().At(f.next)"}},
		kafka, "TestALogThatWasRewrittenBelowThePositionIsAnError"},
	{"R10", "a stream's beginning may pass a gap", []edit{{nats + "/gaps.go", "err == nil && info.State.FirstSeq > begin", "false"}},
		nats, "TestABeginningThatMovesPastASlowPartitionIsNoticed"},
	{"R10", "a message that looks like the server's is taken for it", []edit{{nats + "/feed.go", "err != nil || meta.Stream", "err != nil || len(m.Data) == 0 && m.Header.Get(\"Status\") != \"\" || meta.Stream"}},
		nats, "TestWhatTheServerSaysEndsOneRequestAndNoOther"},
	{"R10", "a lost delivery is taken for a gap", []edit{{nats + "/request.go", "if meta.Sequence.Consumer != r.delivered+1 {", "if false {"}},
		nats, "TestAMessageThatIsLostOnTheWayOrComesLateIsNoticed"},
	{"R10", "a stream's time of creation is not compared", []edit{{nats + "/read.go", "now != r.in {", "now != r.in && false {"}},
		nats, "TestAStreamThatWasCreatedAgainIsAnotherLog"},
	{"R10", "a rewritten stream is not recognised", []edit{{nats + "/open.go", "case fingerprint(m.Time) != r.print:", "case false:"}},
		nats, "TestALogThatWasRewrittenUnderTheSameSequencesIsTruncated"},

	{"R11", "silence is measured by the wall clock", []edit{{kafka + "/contact.go", "return time.Since(c.last)", "return time.Duration(time.Now().UnixNano() - c.last.UnixNano())"}},
		"internal/mutation", "TestR11NothingComparesWallClocks"},

	{"R13", "heartbeats may be as rare as the lease is long", []edit{{kafka + "/lease.go", "if l.heartbeat > l.session/3 {", "if false {"}},
		kafka, "TestOptionsThatAreWrongAreRefusedWithTheReason/slow heartbeat"},
	{"R13", "a silent member continues beyond its session", []edit{{kafka + "/lease.go", "return l.patience() * 9 / 10", "return l.patience() * 12 / 10"}},
		kafka, "TestATenureIsLostBeforeTheSessionOfASilentMemberExpires"},
	{"R13", "a tenure that is being drained continues beyond the session", []edit{{kafka + "/membership.go", "if sl.live() {", "if sl.held && sl.live() {"}},
		kafka, "TestATenureThatIsBeingDrainedIsLostWithContact"},
	{"R13", "an answer to another request prolongs the session", []edit{{kafka + "/membership.go", "alive = s.contact.answered()", "alive = time.Now()"}},
		kafka, "TestAYesToAnotherRequestThanAHeartbeatDoesNotProlongTheSession"},
	{"R13", "only the bucket ends a tenure", []edit{{"consumer/internal/leased/tenure.go", "func() { _ = t.Err() })", "func() {})"}},
		nats, "TestALeaseWhoseTTLRanOutOnOurClockIsLost"},

	{"L3", "a server that does not lead the stream is believed", []edit{{nats + "/log.go", "if !jsapi.Leads(info.Cluster, info.Config.Replicas) {", "if false {"}},
		nats, "TestWhatServersSayThatDoNotLeadDecidesNothing"},
	{"L3", "a leader on its own is believed to have lost messages", []edit{{nats + "/open.go", "case r.at > info.State.LastSeq+1 && !heardFromMost(info.Cluster):", "case false:"}},
		nats, "TestALeaderOnItsOwnIsAskedAgain"},
	{"L3", "a leader that has not stored the message yet explains a gap", []edit{{nats + "/gaps.go", "err != nil || info.State.LastSeq >= last", "err != nil || true"}},
		nats, "TestALeaderThatHasNotStoredTheMessageYetExplainsNoGap"},

	{"L7", "a member of a Kafka group keeps a partition whose handler hangs", []edit{{"consumer/kafkasource/hung.go", "if !held {", "if !held || true {"}},
		kafka, "TestAMemberWhoseHandlerHangsLeavesAndJoinsAgain"},

	{"R2", "a confirmation is not requested from the store", []edit{{held, "return h.renew(ctx)", "return h.item.item, nil"}},
		"lease", "TestAConfirmationHasALaterGenerationAndARefusedOneNone"},
	{"R2", "whatever a lease's key holds is adopted", []edit{{owned, "case !o.isOurs(now):", "case false:"}},
		"lease", "TestAnItemThatIsGoneOrAnothersIsLost"},
	{"R2", "a live lease of another is acquired", []edit{{owned, "if !o.isOurs(now) {", "if false {"}},
		"lease", "TestAnItemOfAnotherIsNeverTaken"},
	{"R2", "a lease that was released is written again", []edit{{owned, "if o.over {", "if false {"}},
		"lease", "TestWhatWasReleasedOrRemovedIsNotWrittenAgain"},
	{"R2", "a lease is taken because a view lacks its registration", []edit{{balances, "if last.item.Live && last.Member != \"\" && !m.isMine(last.Member) {", "if false {"}},
		"lease", "TestALeaseIsNotTakenBecauseAViewLacksItsRegistration"},
	{"R2", "a registration is ended that was renewed meanwhile", []edit{{"lease/expiry.go", "ended, err = m.endOf(ctx, r.item, memberRecord{Name: r.Name})", "r.item, _ = m.store.Get(ctx, key)\n\t\tended, err = m.endOf(ctx, r.item, memberRecord{Name: r.Name})"}},
		"lease", "TestAMemberIsNotEndedBecauseAViewIsLate"},
	{"R2", "a lock is claimed under a lease that is not confirmed", []edit{{locking, "generation, err := c.prove(ctx)", "generation, err := c.Generation(), error(nil)"}},
		"lease", "TestWhoHasLostTheLeaseWithoutKnowingItClaimsNothing"},

	{"R5", "a refusal is explained by an older answer, and the request sent again", []edit{{owned, "for n := 0; n < lags && err == nil && o.refused && now.Version == o.item.Version; n++ {", "for false {"}},
		"lease", "TestARefusalIsNotExplainedByAnOlderAnswer"},
	{"R5", "work whose answer was lost is done again", []edit{{locking, "if got.Next > d.under.Next {", "if false {"}},
		"lease", "TestAnAnswerThatWasLostIsFoundOut"},

	{"R6", "a member whose registration is gone keeps its leases", []edit{{register, "r.over(fmt.Errorf(\"%w: %v\", errUnregistered, err))", "_ = fmt.Errorf(\"%w: %v\", errUnregistered, err)"}},
		"lease", "TestLeasesGoWithTheRegistrationThatTheyName"},
	{"R6", "a lease that is another's in the store is kept", []edit{{held, "h.lose(err)\n\t\th.m.view.refresh()", "h.m.view.refresh()"}},
		"lease", "TestAConfirmationHasALaterGenerationAndARefusedOneNone"},

	{"R7", "a confirmation counts that is answered after the lease has ended", []edit{{held, "if over := h.Err(); over != nil {", "if over := h.Err(); over != nil && false {"}},
		"lease", "TestAConfirmationWhoseAnswerComesAfterTheDeadlineCountsAsLost"},
	{"R7", "a holder begins while another of its resource has not returned", []edit{
		{balances, "sl != nil && !sl.busy && time.Now()", "sl != nil && time.Now()"},
		{balances, "case sl.busy:", "case sl.busy && sl.held != nil && sl.held.held.Err() == nil:"},
	}, "lease", "TestNoHolderBeginsBeforeTheOneBeforeItHasReturned"},

	{"R13", "renewals are rarer than the TTL", []edit{{register, "every := m.TTL / 3", "every := m.TTL * 2"}},
		"lease", "TestALostRenewalOfTheRegistrationCostsNoLease"},
	{"R13", "a lease without acknowledgements lasts beyond the TTL", []edit{{owned, "return ttl * 9 / 10", "return ttl * 12 / 10"}},
		"lease/leasetest", "TestLeasesOnAStoreThatReportsChanges/leases of a member that is cut off are taken once it has given them up itself"},
	{"R13", "a lease counts from when the answer came", []edit{{owned, "err == nil {\n\t\t\to.wrote(item, sent)\n\t\t}", "err == nil {\n\t\t\to.wrote(item, time.Now().Add(0*time.Until(sent)))\n\t\t}"}},
		"lease", "TestAnItemCountsFromWhenItsRenewalWasSent"},

	{"L4", "a value that is no lease keeps its resource idle for good", []edit{{balances, "!m.isMine(h.Member) && !m.isAbandoned(h) {", "!m.isMine(h.Member) {"}},
		"lease", "TestAStrangeValueIsLeftAloneForALeasesTerm"},

	{"L7", "a suspect that renews its registration meanwhile is not ended", []edit{{"lease/expiry.go", "if errors.Is(err, cas.ErrConflict) {\n\t\t\t\tcontinue", "if errors.Is(err, cas.ErrConflict) {\n\t\t\t\treturn nil"}},
		"lease", "TestARenewalInBetweenIsNoReasonNotToEndARegistration"},
	{"L7", "a drain of a lease may overrun", []edit{{held, "h.lose(lost(ErrDrainOverrun))", "_ = lost(ErrDrainOverrun)"}},
		"lease", "TestWhatIsNotGivenBackInTimeIsLost"},
	{"L7", "a holder keeps its lease without progress", []edit{{held, "if m.MaxStall > 0 {", "if false {"}},
		"lease", "TestAHolderWithoutProgressLosesItsLease"},
	{"L7", "a holder keeps a resource by not returning", []edit{{held, "h.keep = context.AfterFunc(h.held, h.abandon)", "h.keep = func() bool { return true }"}},
		"lease", "TestAHolderThatDoesNotReturnKeepsTheResourceForATTLAndNoOtherBeginsBesideIt"},
}
