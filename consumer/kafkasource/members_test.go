package kafkasource

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
)

// During a canary the group gives partitions to consumers that know no fence. kfake does not describe the
// partitions of KIP-848 members by name.
func TestTheLogsOfFencesSayWhichPartitionsAMemberHasThatHasNotClaimedThem(t *testing.T) {
	for _, p := range classics {
		t.Run(p.name, func(t *testing.T) {
			virtually(t, 2, func(r *rig) {
				r.produce(0, 7)
				m := r.joins(with(p.opts...))
				r.share(2, m)
				known := func() (unfenced string) {
					r.sink.mu.Lock()
					fences := []epoch.Fence{{Origin: epoch.Origin{Partition: epoch.Partition{Group: testGroup, Topic: "of NATS"}, Log: "ORDERS@1/0/1/orders.0"}}}
					for _, f := range r.sink.fences {
						fences = append(fences, f)
					}
					r.sink.mu.Unlock()
					logs, err := Logs(r.kafka)(r.Context(), fences)
					if err != nil || len(logs) != 2 {
						r.Fatalf("%v, %v", logs, err)
					}
					for _, f := range fences[1:] {
						if log := logs[f.Partition]; log.End != 7*epoch.Offset(1-f.Partition.Number) || log.Lag != int64(log.End-f.Next) {
							r.Errorf("%s ends at %d, %d are to be applied from %d on", f.Partition, log.End, log.Lag, f.Next)
						}
						unfenced += logs[f.Partition].Unfenced
					}
					return unfenced
				}
				if unfenced := known(); unfenced != "" {
					r.Errorf("not fenced, though claimed: %s", unfenced)
				}
				old := r.client(slices.Concat(p.opts, []kgo.Opt{kgo.ConsumerGroup(testGroup), kgo.ConsumeTopics(testTopic), kgo.DisableAutoCommit()})...)
				for has := ""; has == "" || !strings.HasPrefix(known(), "member "+has+" at "); has, _ = old.GroupMetadata() {
					<-time.After(time.Second)
				}
				old.Close()
				for known() != "" {
					<-time.After(time.Second)
				}
			})
		})
	}
}
