package statusz

import (
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides how the page shows positions: as offsets, or as times for jobs.

// jobs are the partitions that are jobs of package schedule. Their positions are times.
type jobs map[epoch.Partition]bool

func jobsOf(ps ...operate.Partition) jobs {
	js := jobs{}
	for _, p := range ps {
		if isJob(p.Fence) {
			js[p.Fence.Partition] = true
		}
	}
	return js
}

func isJob(f epoch.Fence) bool { return f.Log == operate.JobLog }

// position returns an offset of a partition, as the page shows it.
func (js jobs) position(p epoch.Partition, o epoch.Offset) string {
	switch {
	case o < 0:
		return "–"
	case js[p]:
		return operate.FormatOffset(operate.JobLog, o)
	default:
		return thousands(int64(o))
	}
}

// message names a message by its offset, or a tick by its time.
func (js jobs) message(m epoch.Message) string {
	if js[m.Partition] {
		return "tick " + js.position(m.Partition, m.Offset)
	}
	return "offset " + js.position(m.Partition, m.Offset)
}

func position(f epoch.Fence, o epoch.Offset) string {
	return jobs{f.Partition: isJob(f)}.position(f.Partition, o)
}
