package batches_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// real_test.go has transactions whose markers are lost. Here nobody knows how the transaction ended.
func TestAnUnstablePositionOfAnUnknownResultIsADoubt(t *testing.T) {
	for name, state := range map[string]kmsg.DescribeTransactionsResponseTransactionState{
		"a session before has begun already":           {State: "Empty", ProducerID: 1, ProducerEpoch: 1},
		"another transaction has come between":         {State: "CompleteCommit", ProducerID: 1, ProducerEpoch: 0},
		"the transaction was open when it was read":    {State: "Ongoing", ProducerID: 1, ProducerEpoch: 1},
		"the transactional ID has another producer ID": {State: "CompleteCommit", ProducerID: 2, ProducerEpoch: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startKfake(t)
			r := newKafkaRig(t, c.ListenAddrs()[0])
			var log lines
			r.o.Logger = log.logger()
			r.add("a")
			first := r.takeOver(&process{})
			r.awaitEmpty()
			r.stop(first)
			c.ControlKey(stepInit, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := kreq.ResponseKind().(*kmsg.InitProducerIDResponse)
				resp.ProducerID, resp.ProducerEpoch = 1, 2
				return resp, nil, true
			})
			c.ControlKey(stepDescribe, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := kreq.ResponseKind().(*kmsg.DescribeTransactionsResponse)
				state.TransactionalID = kreq.(*kmsg.DescribeTransactionsRequest).TransactionalIDs[0]
				resp.TransactionStates = append(resp.TransactionStates, state)
				return resp, nil, true
			})
			r.unstable(c, func() bool { return true })
			c.ControlKey(stepEnd, func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				t.Error("a transaction was ended")
				return nil, nil, false
			})
			r.add("a")
			r.takeOver(&process{})
			r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "find-hanging") })
			if len(r.db.Records()) != 1 {
				t.Error("the record was sent")
			}
		})
	}
}

// unstable makes the position unstable while it is.
func (r *kafkaRig) unstable(c *kfake.Cluster, is func() bool) {
	c.ControlKey(stepFetch, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !is() {
			return nil, nil, false
		}
		resp := kreq.ResponseKind().(*kmsg.OffsetFetchResponse)
		group := kmsg.NewOffsetFetchResponseGroup()
		topic := kmsg.NewOffsetFetchResponseGroupTopic()
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.ErrorCode = kerr.UnstableOffsetCommit.Code
		group.Group = kreq.(*kmsg.OffsetFetchRequest).Groups[0].Group
		topic.Topic, topic.Partitions = r.o.Positions, append(topic.Partitions, p)
		group.Topics = append(group.Topics, topic)
		resp.Groups = append(resp.Groups, group)
		return resp, nil, true
	})
}

// A transaction ends in all partitions of the topics of the batch, whose entries the database may have deleted, and
// in the group, with the result of the one before.
func TestAnUnstablePositionIsCompletedAsKafkaHadDecided(t *testing.T) {
	for state, commit := range map[string]bool{"CompleteCommit": true, "PrepareCommit": true, "CompleteAbort": false, "PrepareAbort": false} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			c := startKfake(t)
			r := newKafkaRig(t, c.ListenAddrs()[0])
			r.o.RetryMax = time.Hour // it does not become idle: the batch is the last
			var log lines
			r.o.Logger = log.logger()
			r.add("a")
			first := r.takeOver(&process{})
			r.awaitSent()
			r.stop(first)

			found, err := r.admin().DescribeTransactions(t.Context(), r.o.Prefix+"/billing/orders/3")
			if err != nil {
				t.Fatal(err)
			}
			was := found.Sorted()[0]
			var mu sync.Mutex
			steps, ended := []string{}, false
			c.ControlKey(stepDescribe, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				resp := kreq.ResponseKind().(*kmsg.DescribeTransactionsResponse)
				resp.TransactionStates = append(resp.TransactionStates, kmsg.DescribeTransactionsResponseTransactionState{
					TransactionalID: was.TxnID, State: state, ProducerID: was.ProducerID, ProducerEpoch: was.ProducerEpoch,
				})
				return resp, nil, true // once
			})
			c.ControlKey(stepFetch, func(kreq kmsg.Request) (kmsg.Response, error, bool) { // Kafka has forgotten the result by now
				resp := kreq.ResponseKind().(*kmsg.OffsetFetchResponse)
				group := kmsg.NewOffsetFetchResponseGroup()
				group.Group, group.ErrorCode = kreq.(*kmsg.OffsetFetchRequest).Groups[0].Group, kerr.GroupAuthorizationFailed.Code
				resp.Groups = append(resp.Groups, group)
				return resp, nil, true // once
			})
			r.unstable(c, func() bool { mu.Lock(); defer mu.Unlock(); return !ended })
			c.Control(func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				mu.Lock()
				defer mu.Unlock()
				switch req := kreq.(type) {
				case *kmsg.AddPartitionsToTxnRequest:
					steps = append(steps, fmt.Sprint(req.Topics[0].Topic, slices.Sorted(slices.Values(req.Topics[0].Partitions))))
				case *kmsg.AddOffsetsToTxnRequest:
					steps = append(steps, "group "+req.Group)
				case *kmsg.EndTxnRequest:
					if !ended {
						steps = append(steps, fmt.Sprint(req.Commit))
					}
					ended = true
				}
				return nil, nil, false
			})
			r.add("a")
			r.takeOver(&process{})
			r.awaitSent()
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(log.String(), kerr.GroupAuthorizationFailed.Message) {
				t.Error("the first session did not fail")
			}
			if want := []string{r.target + "[0 1]", "group " + was.TxnID, fmt.Sprint(commit)}; !slices.Equal(steps, want) {
				t.Errorf("the requests were %v, want %v", steps, want)
			}
		})
	}
}
