package operate

import (
	"fmt"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// FormatOffset returns an offset of a log for operators: a number, or for a job of package schedule the
// time in UTC, with the number of committed steps of that tick if there are any.
func FormatOffset(log string, o epoch.Offset) string {
	if log != epoch.ScheduleLog {
		return strconv.FormatInt(int64(o), 10)
	}
	at := time.Unix(int64(o/epoch.ScheduleSecond), 0).UTC().Format(time.RFC3339)
	if step := o % epoch.ScheduleSecond; step > 0 {
		return fmt.Sprintf("%s, step %d", at, step)
	}
	return at
}
