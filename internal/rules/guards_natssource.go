package main

const nats = "consumer/natssource"

var guardsOfNATS = []guard{
	{"R2", "a confirmation is not asked of the bucket", []edit{
		{nats + "/confirm.go", "rev, err := t.renew(ctx)", "rev, err := t.lease.rev, error(nil)"},
	}, nats, "TestConfirmIsARenewalWithALaterNumber"},
	{"R2", "a renewal does not compare the revision", []edit{
		{nats + "/bucket.go", "\t}\n\tm.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))\n", "\t}\n\t_ = last\n"},
	}, nats, "TestOfManyThatTakeALeaseAtOnceOneGetsIt"},
	{"R2", "a release does not compare the revision", []edit{
		{nats + "/bucket.go", "\"DEL\")\n\tm.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))\n", "\"DEL\")\n\t_ = last\n"},
	}, nats, "TestAReleaseThatLandsAfterATakeoverChangesNothing"},
	{"R2", "whatever the key holds is adopted", []edit{
		{nats + "/lease.go", "case !l.isOurs(now):", "case false:"},
	}, nats, "TestARenewalThatLandsAfterATakeoverChangesNothing"},
	{"R2", "the nonce is not compared", []edit{
		{nats + "/lease.go", "r.Nonce == l.nonce", "r.Nonce != \"\""},
	}, nats, "TestARenewalThatLandsAfterATakeoverChangesNothing"},
	{"R2", "a live lease of another is acquired", []edit{
		{nats + "/lease.go", "if !l.isOurs(now) {", "if false {"},
	}, nats, "TestALeaseOfAnotherIsNeverTaken"},
	{"R2", "a lease is taken because a view lacks its registration", []edit{
		{nats + "/balance.go", "\tif last.live && last.member != me.id && !s.isAbandoned(last) {\n", "\tif false {\n"},
	}, nats, "TestALeaseIsNotTakenBecauseAViewLacksItsRegistration"},
	{"blame", "a partition that nobody took and that is ours again keeps others from their share", []edit{
		{nats + "/balance.go", "case !s.refused && s.isOursAgain(h):", "case false && s.isOursAgain(h):"},
	}, nats, "TestAMemberThatJoinsAfterOneThatNeverTookItsShareGetsIts"},
	{"blame", "a lease of ours that no tenure knows is left alone", []edit{
		{nats + "/balance.go", "\tif last.live && last.member != me.id && !s.isAbandoned(last) {\n", "\tif last.live && !s.isAbandoned(last) {\n"},
	}, nats, "TestALeaseOfOursThatNoTenureKnowsIsTakenAgain"},
	{"R2", "a value that is not ours is taken for a free lease", []edit{
		{nats + "/view.go", "return h.live && (h.member == \"\" || registered)", "return h.live && registered"},
	}, nats, "TestAValueThatIsNotOursIsALiveLeaseOfNobodyWeKnow"},
	{"R2", "a registration that is there is buried", []edit{
		{nats + "/bucket.go", "m := b.marker(key)\n\tm.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))\n", "m := b.marker(key)\n\t_ = last\n"},
	}, nats, "TestARegistrationThatIsThereIsNotBuried"},
	{"R2", "what is no lease is overwritten at once", []edit{
		{nats + "/strangers.go", "h.isStrange() && h.stoodFor() >= s.LeaseTTL", "h.isStrange()"},
	}, nats, "TestAStrangeValueIsLeftAloneForALeasesTerm"},
	{"R2", "a member with a longer TTL is taken for dead", []edit{
		{nats + "/strangers.go", "ttl = max(ttl, time.Duration(r.TTL)*time.Second)", "_ = r"},
	}, nats, "TestAMemberWithALongerTTLIsNotTakenForDead"},
	{"R2", "a key that is written another way is taken for a lease's", []edit{
		{nats + "/keys.go", "err == nil && k.lease(p) == key", "err == nil"},
	}, nats, "TestKeysAreWhatTheDocumentationSays"},
	{"blame", "what is no lease idles its partition for good", []edit{
		{nats + "/balance.go", "now.isHeld(h) && !s.isMine(h.member) && !s.isAbandoned(h)", "now.isHeld(h) && !s.isMine(h.member)"},
	}, nats, "TestAStrangeValueIsLeftAloneForALeasesTerm"},
	{"blame", "a strange value that is written again and again is not said", []edit{
		{nats + "/view.go", "if before.isStrange() && h.isStrange() {", "if false {"},
		{nats + "/view.go", "if was.isStrange() {", "if false {"},
	}, nats, "TestAStrangeValueThatIsWrittenAgainAndAgainIsSaid"},
	{"blame", "a registration without a TTL lives for ever", []edit{
		{nats + "/balance.go", "\ts.buryDead(now)\n", ""},
	}, nats, "TestARegistrationWithoutATTLDiesWithItsProcess"},
	{"blame", "what could not be renewed in an outage is taken for a stranger's", []edit{
		{nats + "/view.go", "if p.over != was.over {", "if false {"},
		{nats + "/strangers.go", "nc.Stats().Reconnects != now.over", "false"},
	}, nats, "TestAMemberThatConsumesSaysLittleOfAnOutage"},
	{"blame", "a full read makes a dead registration young", []edit{
		{nats + "/view.go", "\tfresh.keepTimes(v.now)\n", ""},
	}, nats, "TestAFullReadDoesNotForgetHowLongAKeyHasStood"},
	{"blame", "a registration that claims a million partitions is believed", []edit{
		{nats + "/strangers.go", "if sum <= most && int64(len(r.Declined)) <= sum {", "if true {"},
	}, nats, "TestWhatStrangersPutIntoTheBucketIdlesNoPartitionForLong/registration/a million partitions"},
	{"blame", "a lease that names a member of another stream stays", []edit{
		{nats + "/balance.go", "\ts.releaseUnserved(now)\n", ""},
	}, nats, "TestALeaseThatNamesAMemberOfAnotherStreamIsReleased"},
	{"blame", "a bucket that is given a history under its members says nothing", []edit{
		{nats + "/bucket.go", "if err := b.check(info.Config); err != nil {", "if err := b.check(info.Config); err != nil && false {"},
	}, nats, "TestSettingsThatABucketIsGivenUnderItsMembersDelayNoTakeover"},
	{"R8", "a position that is none is overwritten before the partition is claimed", []edit{
		{nats + "/committed.go", "errors.As(err, &broken) && at.Epoch > 0", "errors.As(err, &broken)"},
	}, nats, "TestAPositionThatIsNoneIsSaidWithTheKeyAndReplacedOnceThePartitionIsClaimed"},
	{"blame", "an outage of the brokers is told at each attempt to join", []edit{
		{kafka + "/membership.go", "s.troubles.Add(s.log, slog.LevelWarn, topicPartition{}, \"membership\", \"not in the group; joining again\", \"err\", err)", "s.log.Warn(\"not in the group; joining again\", \"err\", err)"},
	}, kafka, "TestAnOutageOfTheBrokersIsSaidWhenItBeginsNowAndThenAndWhenItIsOver"},
	{"blame", "an outage of the bucket is told at each request", []edit{
		{"consumer/internal/troubles/troubles.go", "if t.times == 1 {", "if true {"},
	}, nats, "TestAnOutageIsSaidWhenItBeginsNowAndThenAndWhenItIsOver"},
	{"R2", "what says that there is no registration yet is believed", []edit{
		{nats + "/members.go", "now.rev, err = s.bucket.bury(ctx, s.keys.member(id), 0)", "now.rev = 1"},
	}, nats, "TestARegistrationThatAServerLacksIsNotGone"},
	{"R2", "a registration that is gone comes back", []edit{
		{nats + "/view.go", " || e.rev <= p.gone[id] {", " {"},
	}, nats, "TestALeaseLastsAsLongAsTheRegistrationThatItNames"},
	{"R2", "a member registers under an id that it had", []edit{
		{nats + "/members.go", "\tif s.registered > 1 {\n", "\tif false {\n"},
	}, nats, "TestLeasesGoWithTheRegistrationThatTheyName"},
	{"R6", "a member whose registration is gone keeps its tenures", []edit{
		{nats + "/members.go", "\t\tr.over(fmt.Errorf(\"%w: %v\", errUnregistered, err))", "\t\t_ = fmt.Errorf(\"%w: %v\", errUnregistered, err)"},
	}, nats, "TestLeasesGoWithTheRegistrationThatTheyName"},
	{"R6", "a holder does not hear that its lease was taken", []edit{
		{nats + "/balance.go", "\ts.verifyHeld(now)\n", ""},
	}, nats, "TestAHolderHearsOfALeaseThatIsNotItsOwnAnyMore"},
	{"R6", "a member that leaves gives up its registration before its leases", []edit{
		{nats + "/source.go", "\ts.drainAll()\n\tleave()\n", "\tleave()\n\ts.drainAll()\n"},
	}, nats, "TestAMemberThatLeavesKeepsItsLeasesUntilTheyAreGivenBack"},
	{"blame", "a bucket that was restored is not read anew", []edit{
		{nats + "/view.go", "err == nil && now != before ||", "err == nil && now != before && false ||"},
	}, nats, "TestAViewOfABucketThatWasRestoredIsReadAnew"},
	{"blame", "own keeps a partition by not returning", []edit{
		{nats + "/balance.go", "\tdefer t.OnceLost(t.abandon)()\n", ""},
	}, nats, "TestADrainThatOverrunsIsCancelled"},
	{"R2", "the position of a recreated stream is confirmed", []edit{
		{nats + "/confirm.go", "seen.Check(t.origin)", "seen.Check(seen.Origin)"},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},
	{"R2", "partitions of another number of partitions are the same log", []edit{
		{nats + "/log.go", "n, len(l.filters), l.filters[n])", "n, 0, l.filters[n])"},
	}, nats, "TestALogIsAnotherWhenWhatItsOffsetsCountIs"},

	{"R6", "a lease that the bucket says is gone is tried again", []edit{
		{nats + "/tenure.go", "\t\tt.Lose(err)\n", ""},
	}, nats, "TestALeaseThatSomebodyDeletesIsLostWhenItIsConfirmed"},

	{"R7", "an answer counts after the tenure has ended", []edit{
		{nats + "/confirm.go", "if over := t.err(); over != nil {", "if over := t.err(); over != nil && false {"},
	}, nats, "TestAConfirmationThatComesAfterTheTenureCountsAsLost"},
	{"R7", "a tenure begins while another of its partition has not returned", []edit{
		{nats + "/balance.go", "sl != nil && !sl.busy && time.Now()", "sl != nil && time.Now()"},
		{nats + "/balance.go", "\t\tcase sl.busy:\n", "\t\tcase sl.busy && sl.tenure != nil && sl.tenure.Lost() == nil:\n"},
	}, nats, "TestNoTenureBeginsBeforeTheOneBeforeItHasReturned"},
	{"R7", "a tenure outlives the stream it is of", []edit{
		{nats + "/balance.go", "\t\t\tt.Lose(errOtherStream)\n", ""},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},

	{"R8", "the position of a recreated stream is adopted", []edit{
		{nats + "/committed.go", "if m.Log != \"\" && m.Log !=", "if false && m.Log !="},
	}, nats, "TestAPositionOfARecreatedStreamIsNotAdopted"},
	{"R8", "a position below what others had published takes its place in NATS", []edit{
		{positions, "at.Epoch > 0 && at.Next >= *p.theirs", "at.Epoch > 0"},
	}, nats, "TestSuite/a position that the group had committed through others is not taken back before ours has passed it"},
	{"R8", "the position of a NATS partition that was not claimed takes the place of the group's", []edit{
		{positions, "at.Epoch > 0 && at.Next >= *p.theirs", "at.Next >= *p.theirs"},
	}, nats, "TestSuite/a position that the group had committed through others is not taken back before ours has passed it"},
	{"R8", "a durable consumer speaks for what it was never to deliver", []edit{
		{nats + "/committed.go", "!covers(filters, l.filters[n]) {", "false {"},
	}, nats, "TestADurableConsumerThatDidTheWorkSaysHowFarItGot"},
	{"R8", "a durable consumer that is named and cannot say how far the work was done has it done again", []edit{
		{nats + "/committed.go", "if l.stream.Durable == \"\" {", "if true {"},
	}, nats, "TestADurableConsumerThatDidTheWorkSaysHowFarItGot"},
	{"R10", "a NATS partition begins without a fingerprint", []edit{
		{nats + "/starts.go", "next.Mark = fingerprint(info.State.LastTime)", "_ = fingerprint"},
	}, nats, "TestAStreamThatWasCutBeforeTheFirstMessageWasAppliedIsTruncated"},
	{"R9", "a NATS partition of which nothing was applied is passed by", []edit{
		{nats + "/open.go", "if !r.fresh {", "if true {"},
	}, nats, "TestSuite/a partition of which nothing was applied begins where its log begins by then"},
	{"R8", "two positions of a NATS partition are written at once", []edit{
		{nats + "/committed.go", "\tcase t.writing <- struct{}{}:\n\t\tdefer func() { <-t.writing }()\n", "\tdefault:\n"},
	}, nats, "TestAPositionThatIsWrittenLateDoesNotTakeThePlaceOfANewerOne"},
	{"R8", "the last position of a NATS tenure is not published", []edit{
		{nats + "/balance.go", "\tif lost := t.Lost(); lost == nil {\n\t\tt.publish(ctx)\n", "\tif lost := t.Lost(); lost == nil {\n"},
	}, nats, "TestOfAMemberThatLeftItsLastTenureTheNewestPositionIsPublished"},

	{"R10", "a stream's beginning may pass a gap", []edit{
		{nats + "/read.go", "err == nil && info.State.FirstSeq > begin", "false"},
	}, nats, "TestABeginningThatMovesPastASlowPartitionIsNoticed"},
	{"R10", "a leader that has not stored the message yet explains a gap", []edit{
		{nats + "/read.go", "err != nil || info.State.LastSeq >= last", "err != nil || true"},
	}, nats, "TestALeaderThatHasNotStoredTheMessageYetExplainsNoGap"},
	{"R10", "messages that expired behind one that never does are a gap like others", []edit{
		{nats + "/ahead.go", "info.Config.MaxAge > 0 && info.TimeStamp", "false && info.TimeStamp"},
	}, nats, "TestMessagesThatHaveExpiredBehindOneThatNeverDoesAreNotPassedOver"},
	{"R10", "a partition settles over messages that expired behind one that never does", []edit{
		{nats + "/skip.go", "return r.misfit(consumer.ErrOffsetExpired, r.at, cmp.Or(ours, after.State.LastSeq+1))", "_ = lost"},
	}, nats, "TestMessagesThatHaveExpiredBehindOneThatNeverDoesAreNotPassedOver"},
	{"blame", "messages that a server has not yet let expire are taken for lost", []edit{
		{nats + "/ahead.go", "case !neverExpires(first):", "case false:"},
	}, nats, "TestAServerThatExpiresMessagesLateHasNotLostAny"},
	{"blame", "a message that never expires makes all that comes later lost", []edit{
		{nats + "/ahead.go", "return err == nil && aged(info, at.Time), err", "_ = at; return err == nil, err"},
	}, nats, "TestAMessageThatNeverExpiresDoesNotMakeLaterOnesLost"},
	{"blame", "a quiet partition is looked after more rarely than messages expire", []edit{
		{nats + "/log.go", "if l.maxAge == 0 {", "if true {"},
	}, nats, "TestAQuietPartitionIsNotPassedByTheAgeOfOthersMessages"},
	{"blame", "a quiet partition does not see that a stream loses its beginning fast", []edit{
		{nats + "/skip.go", "} else if r.begins < begins {", "} else if false {"},
	}, nats, "TestAQuietPartitionKeepsUpWithAStreamThatLosesItsBeginningFast"},
	{"R10", "what the origin of a mirror has dropped is passed over", []edit{
		{nats + "/read.go", "before, err = r.lostByOrigin(ctx, info, ms)", "before = len(ms)"},
	}, nats, "TestWhatTheOriginOfAMirrorHasDroppedIsNotPassedOver"},
	{"R10", "a partition settles over what the origin of a mirror has dropped", []edit{
		{nats + "/skip.go", "return r.misfit(consumer.ErrOffsetExpired, r.at, cmp.Or(ours, end+1))", "_ = lost"},
	}, nats, "TestWhatTheOriginOfAMirrorHasDroppedIsNotPassedOver"},
	{"blame", "what is missing from a mirror is taken for lost, whatever its origin says", []edit{
		{nats + "/mirror.go", "err != nil || l.mirror.explains(info, s) {", "err != nil {"},
	}, nats, "TestWhatWasDeletedFromInsideTheOriginOfAMirrorIsPassedOver"},
	{"R10", "what only the consumer's server let expire is passed over", []edit{
		{nats + "/read.go", "err == nil && r.mayBeAhead(info, ms)", "false"},
	}, nats, "TestWhatOnlyTheConsumersServerHasLetExpireIsNotHandedOn"},
	{"R10", "a message that looks like the server's is taken for it", []edit{
		{nats + "/pull.go", "err != nil || meta.Stream", "err != nil || len(m.Data) == 0 && m.Header.Get(\"Status\") != \"\" || meta.Stream"},
	}, nats, "TestWhatTheServerSaysEndsOneRequestAndNoOther"},
	{"R10", "a lost delivery is taken for a gap", []edit{
		{nats + "/read.go", "if meta.Sequence.Consumer != r.delivered+1 {", "if false {"},
	}, nats, "TestAMessageThatIsLostOnTheWayOrComesLateIsNoticed"},
	{"R10", "a message from below the position is repeated", []edit{
		{nats + "/read.go", "if meta.Sequence.Stream >= r.at {", "if true {"},
	}, nats, "TestAMessageThatIsLostOnTheWayOrComesLateIsNoticed"},
	{"R10", "a consumer is believed before its stream was seen", []edit{
		{nats + "/open.go", "if err := r.check(ctx); err != nil {", "if err := ctx.Err(); err != nil {"},
	}, nats, "TestAConsumerOfARecreatedStreamIsNotBelieved"},
	{"R10", "a stream's time of creation is not compared", []edit{
		{nats + "/read.go", "now != r.in {", "now != r.in && false {"},
	}, nats, "TestAStreamThatWasCreatedAgainIsAnotherLog"},
	{"R10", "a position above a stream's end waits", []edit{
		{nats + "/open.go", "case r.at > info.State.LastSeq+1:", "case false:"},
	}, nats, "TestAPositionAboveTheStreamsEndIsTruncated"},
	{"R10", "a server that does not lead the stream is believed", []edit{
		{nats + "/log.go", "if !leads(info.Cluster, info.Config.Replicas) {", "if false {"},
	}, nats, "TestWhatServersSayThatDoNotLeadDecidesNothing"},
	{"R9", "a server that does not lead a durable consumer says where it is", []edit{
		{nats + "/committed.go", "c.Cluster != nil && !leads(c.Cluster,", "c.Cluster != nil && false && !leads(c.Cluster,"},
	}, nats, "TestThePositionOfAConsumerIsItsLeadersToSay"},
	{"R10", "a leader on its own is believed to have lost messages", []edit{
		{nats + "/open.go", "case r.at > info.State.LastSeq+1 && !heardFromMost(info.Cluster):", "case false:"},
	}, nats, "TestALeaderOnItsOwnIsAskedAgain"},
	{"R10", "a rewritten stream is not recognised", []edit{
		{nats + "/open.go", "case fingerprint(m.Time) != r.print:", "case false:"},
	}, nats, "TestALogThatWasRewrittenUnderTheSameSequencesIsTruncated"},
	{"R10", "a stream is looked at only when a consumer is made", []edit{
		{nats + "/skip.go", "err = r.fits(ctx, before)", "err = nil"},
	}, nats, "TestAStreamThatLosesItsEndUnderAReaderIsTruncated"},
	{"R10", "a partition settles over what is lost meanwhile", []edit{
		{nats + "/skip.go", "case after.State.FirstSeq > r.at:", "case false:"},
	}, nats, "TestWhatIsLostWhileAPartitionSettlesIsNotPassed"},
	{"R10", "a partition settles by what two leaders say", []edit{
		{nats + "/skip.go", "case leader(before) != leader(after):", "case false:"},
	}, nats, "TestNothingIsSettledAcrossAChangeOfLeaders"},
	{"R10", "a partition settles over a message of its own", []edit{
		{nats + "/skip.go", "if ours > 0 && ours <= end {", "if false {"},
	}, nats, "TestAConsumerThatDoesNotDeliverIsReplaced"},
	{"R10", "a consumer that does not deliver is waited for", []edit{
		{nats + "/owed.go", "\tr.stalls++\n\treturn errStalled\n", "\treturn nil\n"},
	}, nats, "TestAConsumerThatDoesNotDeliverIsReplaced"},
	{"blame", "nobody looks whether a consumer owes a message before it is time to skip", []edit{
		{nats + "/read.go", "if err := r.lookForOwed(ctx); err != nil {", "if err := ctx.Err(); err != nil {"},
	}, nats, "TestAMessageThatAConsumerOwesIsNoticedWithinSeconds"},
	{"blame", "a consumer is replaced whose message has arrived", []edit{
		{nats + "/owed.go", "< r.patience() || r.pull.hasMore() {", "< r.patience() {"},
	}, nats, "TestAMessageThatHasArrivedIsNotOwed"},
	{"blame", "a request that went with its connection is waited for", []edit{
		{nats + "/owed.go", "case r.pull.forgotten():", "case false:"},
	}, nats, "TestARequestThatWentWithItsConnectionIsMadeAgain"},
	{"blame", "readers of a quiet stream ask every second", []edit{
		{nats + "/pull.go", "if !p.heard {", "if true {"},
	}, nats, "TestReadersOfAQuietStreamAskForNextToNothing"},
	{"blame", "readers of a quiet stream skip all the same", []edit{
		{nats + "/read.go", "Before(r.nextSkip()) || r.isAtEnd(ctx) {", "Before(r.nextSkip()) {"},
	}, nats, "TestReadersOfAQuietStreamAskForNextToNothing"},
	{"R10", "a stream that was rewritten up to its reader is taken for a quiet one", []edit{
		{nats + "/skip.go", "|| r.print >= 0 && fingerprint(s.LastTime) != r.print {", "{"},
	}, nats, "TestAStreamThatWasRewrittenUpToAReaderIsTruncated"},
	{"R10", "a quiet partition of a stream stays behind its beginning", []edit{
		{nats + "/skip.go", "\tr.pass(end, last)\n", "\t_, _ = end, last\n"},
	}, nats, "TestAQuietPartitionKeepsUpWithAStreamThatLosesItsBeginning"},
	{"R10", "a transform may change under its readers", []edit{
		{nats + "/skip.go", "differs != nil {", "differs != nil && false {"},
	}, nats, "TestATransformThatIsChangedUnderAReaderEndsItsRead"},
	{"R10", "two filters may match one message", []edit{
		{nats + "/subject.go", "if overlap(f, g) {", "if false {"},
	}, nats, "TestFiltersThatCannotMakePartitionsAreRefused"},
	{"R10", "a stream that deletes what was acknowledged is read", []edit{
		{nats + "/log.go", "if c.Retention != jetstream.LimitsPolicy {", "if false {"},
	}, nats, "TestAStreamThatCannotBeReadAsAskedIsRefusedWithTheReason"},

	{"R13", "renewals are rarer than the TTL", []edit{
		{nats + "/members.go", "every := s.LeaseTTL / 3", "every := s.LeaseTTL * 2"},
	}, nats, "TestWhatIsGivenBackAndNotTakenCostsOnePartitionARestAndNoMore"},
	{"R13", "a tenure without acknowledgements continues beyond the TTL", []edit{
		{nats + "/lease.go", "return ttl * 9 / 10", "return ttl * 12 / 10"},
	}, nats, "TestALeaseWhoseTTLRanOutOnOurClockIsLost"},
	{"R13", "only the bucket ends a tenure", []edit{
		{nats + "/members.go", "\t\tr.over(errRanOut)\n", ""},
	}, nats, "TestALeaseWhoseTTLRanOutOnOurClockIsLost"},
	{"R13", "a deadline counts once a timer has noticed it", []edit{
		{nats + "/tenure.go", "_ = t.under.err()", ""},
	}, nats, "TestADeadlineThatNoTimerHasNoticedCounts"},
	{"R13", "a lease counts from when the answer came", []edit{
		{nats + "/lease.go", "\t\t\tl.extend(sent)\n\t\t\treturn rev, nil", "\t\t\tl.extend(time.Now().Add(0 * time.Until(sent)))\n\t\t\treturn rev, nil"},
	}, nats, "TestALeaseCountsFromWhenItsRenewalWasSent"},
	{"R13", "an adopted revision extends the lease", []edit{
		{nats + "/lease.go", "l.rev, l.inDoubt = now.rev, false\n", "l.rev, l.inDoubt = now.rev, false\n\tl.extend(time.Now())\n"},
	}, nats, "TestARenewalWhoseAnswerWasLostIsAdopted"},
	{"R13", "one lost answer uses the lease up", []edit{
		{nats + "/lease.go", "min(max(ttl/6, 500*time.Millisecond), ttl/3)", "ttl"},
	}, nats, "TestALostAnswerLeavesTimeToRenewAgain"},
	{"R13", "a drain of a NATS partition may overrun", []edit{
		{tenures, "s.Lose(consumer.ErrDrainOverrun)", "_ = consumer.ErrDrainOverrun"},
	}, nats, "TestADrainThatOverrunsIsCancelled"},
	{"R13", "a bucket without room for the leases holds them", []edit{
		{nats + "/bucket.go", "cmp.Or(checkBucket(config, b.ttl), b.needs.check(config))", "cmp.Or(checkBucket(config, b.ttl))"},
	}, nats, "TestABucketThatIsTooSmallInAnyCaseIsRefusedWithTheRemedy"},
	{"R13", "a registration that has more to tell needs room for it", []edit{
		{nats + "/members.go", "if errors.As(err, &full) && len(value) > len(r.fits) {", "if errors.As(err, &full) && false {"},
	}, nats, "TestAFullBucketHasRoomForARegistrationThatHasMoreToTell"},
	{"R13", "a bucket whose keys do not expire holds leases", []edit{
		{nats + "/bucket.go", "case !c.AllowMsgTTL, c.SubjectDeleteMarkerTTL <= 0:", "case false:"},
	}, nats, "TestABucketThatCannotHoldLeasesIsRefusedWithTheRemedy"},

	{"R6", "a lease that a tenure holds is taken for one of nobody", []edit{
		{nats + "/balance.go", "|| sl == nil || sl.busy ||", "|| sl == nil ||"},
	}, nats, "TestWhatIsGivenBackAndNotTakenCostsOnePartitionARestAndNoMore"},
	{"R13", "a new lease counts from when the answer came", []edit{
		{nats + "/lease.go", "\t\tl.extend(sent)\n\t\treturn entry{}, nil", "\t\tl.extend(time.Now().Add(0 * time.Until(sent)))\n\t\treturn entry{}, nil"},
	}, nats, "TestALeaseCountsFromWhenItsRenewalWasSent"},
	{"R13", "a write is kept until the connection is back", []edit{
		{nats + "/bucket.go", "if !nc.IsConnected() {", "if false {"},
	}, nats, "TestNothingIsWrittenLaterThanItWasAskedFor"},
	{"R2", "the position of another log is read from", []edit{
		{nats + "/tenure.go", "if err := from.Check(t.origin); err != nil {", "if err := from.Check(from.Origin); err != nil {"},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},
	{"blame", "a member gives partitions back all at once", []edit{
		{nats + "/balance.go", "\t\tcase time.Since(h.since) < s.LeaseTTL:\n\t\t\treturn\n", "\t\tcase time.Since(h.since) < s.LeaseTTL:\n"},
	}, nats, "TestPartitionsAreGivenBackOneAfterTheOther"},
	{"blame", "members that cannot start are given partitions", []edit{
		{nats + "/source.go", "\tw, err := s.view.read(ctx)\n", "\t_ = s.register(limited)\n\tw, err := s.view.read(ctx)\n"},
	}, nats, "TestAMemberThatCannotStartIsNotGivenPartitions"},
	{"blame", "a stream that refuses the next reader is read", []edit{
		{nats + "/log.go", "if err := checkLimits(info.Config, len(l.filters)); err != nil {", "if err := error(nil); err != nil {"},
	}, nats, "TestAStreamThatCannotBeReadAsAskedIsRefusedWithTheReason"},
	{"blame", "a full bucket is told once for each write", []edit{
		{"consumer/internal/troubles/troubles.go", "if t.times == 1 {", "if true {"},
	}, nats, "TestABucketThatTakesNoRenewalIsSaidOnceBeforeLeasesRunOut"},
	{"blame", "shares do not follow from who serves what", []edit{
		{"internal/shares/shares.go", "for f.improve() {", "for false {"},
	}, nats, "TestMembersThatServeDifferentStreamsShareOutFairlyWithTheFewestMoves"},
	{"blame", "a free partition is taken by whoever sees it", []edit{
		{nats + "/share.go", "ours && to == me {", "ours && k.serves[me] {"},
	}, nats, "TestWhatAnotherDoesNotTakeIsTakenInItsPlace"},
	{"blame", "what a member gave up stays idle", []edit{
		{"internal/shares/shares.go", "for f.improve() {", "for false {"},
	}, "consumer/memsource", "TestWhatAMemberGaveUpIsTakenByAnotherThatHasItsShareAlready"},
	{"blame", "a start that meets with an election gives up", []edit{
		{nats + "/view.go", "if !errors.As(err, &old) {", "if !errors.As(err, &old) || true {"},
	}, nats, "TestAStartWaitsForAnElectionThatIsUnderWay"},
	{"R13", "more is requested than a slow link carries in time", []edit{
		{nats + "/flight.go", "if f.used > 0 && f.used+bytes > bound {", "if false {"},
	}, nats, "TestWhatIsInFlightArrivesInTimeAndFillsTheLink"},
	{"R13", "the rate of the link is not measured", []edit{
		{nats + "/flight.go", "f.fits = max(min(f.carries(f.rate), proven), leastQuiet)", "_ = proven\n\tf.fits = mostFlight"},
	}, nats, "TestWhatIsInFlightArrivesInTimeAndFillsTheLink"},
	{"R13", "a rate by a burst of what had waited on the way is believed at once", []edit{
		{nats + "/flight.go", "f.fits = max(min(f.carries(f.rate), proven), leastQuiet)", "_ = proven\n\tf.fits = max(f.carries(f.rate), leastQuiet)"},
	}, nats, "TestALostConnectionBeginsAnewWithLessInFlight"},
	{"blame", "a reader that does something else meanwhile keeps the link idle for ever", []edit{
		{nats + "/flight.go", "f.fits = max(f.fits, min(before+before/4, mostFlight))", "_ = before"},
	}, nats, "TestWhatIsInFlightArrivesInTimeAndFillsTheLink"},
	{"R13", "what was requested for messages of unknown size, and was not needed, raises the bound", []edit{
		{nats + "/flight.go", "2*came >= int64(before) && took", "took"},
	}, nats, "TestTurnsForMessagesOfUnknownSizeDoNotRaiseTheBound"},
	{"R13", "what leaders are asked for is not bounded until one of them has answered", []edit{
		{nats + "/flight.go", "f.body = max(f.body, largest)", "_ = largest"},
	}, nats, "TestMessagesThatCameTellHowRarelyALeaderMayBeAskedForOne"},
	{"blame", "a message larger than what may be in flight never comes", []edit{
		{nats + "/flight.go", "if f.used > 0 && f.used+bytes > bound {", "if f.used+bytes > bound {"},
	}, nats, "TestTurnsComeInTheOrderInWhichTheyWereAskedFor"},
	{"R13", "a server that drops the connection for what it has waiting is asked for as much again", []edit{
		{nats + "/flight.go", "f.ceiling, f.lowered = max(f.used/4, leastCeiling), time.Now()", "f.ceiling = 0"},
	}, nats, "TestALostConnectionBeginsAnewWithLessInFlight"},
	{"R13", "what comes where nothing was waiting is not bounded", []edit{
		{nats + "/turns.go", "min(window, quiet), window, laterExpires", "max(window, 0), window, laterExpires"},
	}, nats, "TestABurstOverASlowLinkCostsNoLease"},
	{"blame", "a message that the link cannot carry within the lease is not said", []edit{
		{nats + "/turns.go", "if !r.isLarge() || took < r.tooSlow() {", "if true {"},
	}, nats, "TestAMessageThatTheLinkCannotCarryWithinTheLeaseIsSaid"},
	{"blame", "partitions that nobody takes are given back for ever", []edit{
		{nats + "/balance.go", "if give == nil || s.refused {", "if give == nil {"},
	}, nats, "TestWhatIsGivenBackAndNotTakenCostsOnePartitionARestAndNoMore"},
}
