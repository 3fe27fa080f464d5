package main

const (
	nats      = "consumer/natssource"
	natsStore = "cas/natsstore"
	leased    = "consumer/internal/leased/tenure.go"
)

var guardsOfNATS = []guard{
	{"R2", "a confirmation is not asked of the bucket", []edit{
		{leased, "return t.lease.Confirm(ctx)", "_ = ctx\n\treturn t.lease.Generation(), nil"},
	}, nats, "TestConfirmIsARenewalWithALaterNumber"},
	{"blame", "a read of NATS whose answer is lost is waited for until its context ends", []edit{
		{natsStore + "/natsstore.go", "for wait := leastWait;", "for wait := time.Hour;"},
	}, natsStore, "TestAReadWhoseAnswerIsLostIsMadeAgain"},
	{"R2", "a write does not compare the revision", []edit{
		{natsStore + "/natsstore.go", "m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, last)", "_ = last"},
	}, natsStore, "TestSuite/of writes at the same time one wins"},
	{"R2", "a refusal that decides nothing is a conflict", []edit{
		{natsStore + "/natsstore.go", "if !jsapi.HasCode(err, jetstream.JSErrCodeStreamWrongLastSequenceConstant) {", "if true {"},
		{natsStore + "/natsstore.go", "case jsapi.HasCode(err, jetstream.JSErrCodeStreamWrongLastSequence):", "case jsapi.HasCode(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant):"},
	}, natsStore, "TestARefusalWhileAnotherWriteIsInProcessIsNoConflict"},
	{"R8", "a position that is none is overwritten before the partition is claimed", []edit{
		{nats + "/committed.go", "errors.As(err, &broken) && at.Epoch > 0", "errors.As(err, &broken)"},
	}, nats, "TestAPositionThatIsNoneIsSaidWithTheKeyAndReplacedOnceThePartitionIsClaimed"},
	{"blame", "an outage of the brokers is told at each attempt to join", []edit{
		{kafka + "/membership.go", "s.troubles.Add(s.log, slog.LevelWarn, topicPartition{}, \"membership\", \"not in the group; joining again\", \"err\", err)", "s.log.Warn(\"not in the group; joining again\", \"err\", err)"},
	}, kafka, "TestAnOutageOfTheBrokersIsSaidWhenItBeginsNowAndThenAndWhenItIsOver"},
	{"blame", "an outage of the bucket is told at each request", []edit{
		{"internal/text/troubles/troubles.go", "if t.times == 1 {", "if true {"},
	}, nats, "TestAnOutageIsSaidWhenItBeginsNowAndThenAndWhenItIsOver"},
	{"R2", "the position of a recreated stream is confirmed", []edit{
		{leased, "seen.Check(t.origin)", "seen.Check(seen.Origin)"},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},
	{"R2", "partitions of another number of partitions are the same log", []edit{
		{nats + "/log.go", "n, len(l.filters), l.filters[n])", "n, 0, l.filters[n])"},
	}, nats, "TestALogIsAnotherWhenWhatItsOffsetsCountIs"},

	{"R6", "a tenure outlives a lease that the bucket says is gone", []edit{
		{leased, "t.Lose(ReasonOf(err))", "_ = ReasonOf(err)"},
	}, nats, "TestALeaseThatSomebodyDeletesIsLostWhenItIsConfirmed"},

	{"R7", "an answer counts after the tenure has ended", []edit{
		{leased, "if over := t.Err(); over != nil {", "if over := t.Err(); over != nil && false {"},
	}, nats, "TestAConfirmationThatComesAfterTheTenureCountsAsLost"},
	{"R7", "a tenure outlives the stream it is of", []edit{
		{nats + "/source.go", "\t\t\tt.Lose(errOtherStream)\n", ""},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},

	{"R8", "the position of a recreated stream is adopted", []edit{
		{nats + "/committed.go", "if p.Log != \"\" && p.Log !=", "if false && p.Log !="},
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
		{nats + "/tenure.go", "\t\tt.publish(ctx)\n", "\t\t_ = ctx\n"},
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
		{nats + "/log.go", "if !jsapi.Leads(info.Cluster, info.Config.Replicas) {", "if false {"},
	}, nats, "TestWhatServersSayThatDoNotLeadDecidesNothing"},
	{"R9", "a server that does not lead a durable consumer says where it is", []edit{
		{nats + "/committed.go", "c.Cluster != nil && !jsapi.Leads(c.Cluster,", "c.Cluster != nil && false && !jsapi.Leads(c.Cluster,"},
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
		{nats + "/subject.go", "if overlapping(tokens[i], tokens[j]) {", "if false {"},
	}, nats, "TestFiltersThatCannotMakePartitionsAreRefused"},
	{"R10", "a stream that deletes what was acknowledged is read", []edit{
		{nats + "/log.go", "if c.Retention != jetstream.LimitsPolicy {", "if false {"},
	}, nats, "TestAStreamThatCannotBeReadAsAskedIsRefusedWithTheReason"},

	{"R13", "only the bucket ends a tenure", []edit{
		{leased, "func() { _ = t.Err() })", "func() {})"},
	}, nats, "TestALeaseWhoseTTLRanOutOnOurClockIsLost"},
	{"R13", "a tenure does not end with the time of its lease", []edit{
		{leased, "case errors.Is(err, lease.ErrExpired):", "case false:"},
	}, nats, "TestALeaseWhoseTTLRanOutOnOurClockIsLost"},
	{"R13", "a drain of a NATS partition that has overrun is another loss", []edit{
		{leased, "case errors.Is(err, lease.ErrDrainOverrun):", "case false:"},
	}, nats, "TestADrainThatOverrunsIsCancelled"},
	{"R13", "own is not asked for a NATS partition that is to be given back", []edit{
		{leased, "case <-t.lease.Draining():\n\t\t\tt.Revoke()", "case <-t.lease.Draining():"},
	}, nats, "TestPartitionsAreGivenBackOneAfterTheOther"},
	{"R13", "a bucket without room for the leases holds them", []edit{
		{nats + "/source.go", "s.needs().check(bucket)", "s.needs().check(jetstream.StreamConfig{Name: bucket.Name})"},
	}, nats, "TestABucketThatIsTooSmallInAnyCaseIsRefusedWithTheRemedy"},
	{"R13", "a bucket whose keys do not expire holds leases", []edit{
		{natsStore + "/bucket.go", "case !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL <= 0:", "case false:"},
	}, natsStore, "TestABucketThatLosesItemsIsRefusedWithTheRemedyThatTheServerTakes"},

	{"R13", "a write is kept until the connection is back", []edit{
		{natsStore + "/natsstore.go", "if !nc.IsConnected() {", "if false {"},
	}, natsStore, "TestNothingIsWrittenLaterThanItWasAskedFor"},
	{"R2", "the position of another log is read from", []edit{
		{nats + "/tenure.go", "if err := t.Fits(&from); err != nil {", "if err := t.Fits(&from); err != nil && false {"},
	}, nats, "TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog"},
	{"blame", "a stream that refuses the next reader is read", []edit{
		{nats + "/log.go", "if err := checkLimits(info.Config, len(l.filters)); err != nil {", "if err := error(nil); err != nil {"},
	}, nats, "TestAStreamThatCannotBeReadAsAskedIsRefusedWithTheReason"},
	{"blame", "a full bucket is told once for each write", []edit{
		{"internal/text/troubles/troubles.go", "if t.times == 1 {", "if true {"},
	}, nats, "TestABucketThatTakesNoRenewalIsSaidOnceBeforeLeasesRunOut"},
	{"blame", "what a member gave up stays idle", []edit{
		{"internal/shares/shares.go", "for f.improve() {", "for false {"},
	}, "consumer/memsource", "TestWhatAMemberGaveUpIsTakenByAnotherThatHasItsShareAlready"},
	{"blame", "a start that meets with an election gives up", []edit{
		{natsStore + "/watch.go", "if !errors.As(err, &old) {", "if !errors.As(err, &old) || true {"},
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
}
