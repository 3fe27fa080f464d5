package rebuild

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/internal/show"
)

// audit is the result of a column, from the reader, the database and the objects.
type audit struct {
	counts
	ticks   int
	builds  int
	doubled int
	lost    int
	harmed  int    // earlier builds that are not as they were, of the fenced column
	unnamed int    // objects that no build names, of the fenced column
	end     string // what is wrong with the index at the end, or ""
}

func (a audit) exact() bool {
	return a.reads > 0 && a.mixtures+a.backwards+a.doubled+a.lost+a.harmed == 0 && a.end == "" && a.ticks > 0
}

func (a audit) rows(c *column) []show.Row {
	unnamed, harmed := show.Thousands(a.unnamed), show.Thousands(a.harmed)
	if c.isBaseline() {
		unnamed, harmed = "-", "-"
	}
	return []show.Row{
		{Label: "ticks", Value: show.Thousands(a.ticks)},
		{Label: "builds recorded", Value: show.Thousands(a.builds)},
		{Label: "  doubled", Value: show.Thousands(a.doubled)},
		{Label: "  lost", Value: show.Thousands(a.lost)},
		{Label: "reads of the index", Value: show.Thousands(a.reads)},
		{Label: "  a mixture of builds", Value: show.Thousands(a.mixtures)},
		{Label: "  older than before", Value: show.Thousands(a.backwards)},
		{Label: "earlier builds changed", Value: harmed},
		{Label: "objects that no build has", Value: unnamed},
		{Label: "index at the end is exact", Value: show.Yes(a.end == "", "no, "+a.end)},
		{Label: "commits refused as stale", Value: show.Thousands(c.Crew.Outcomes(show.Stale))},
	}
}

func (c *column) judge(ctx context.Context) (a audit, err error) {
	var last map[string]reading
	a.counts, last = c.reader.result()
	for _, job := range c.jobs {
		if err := c.judgeTicks(ctx, job, &a); err != nil {
			return a, err
		}
		_, to, err := c.span(ctx, job)
		if err != nil {
			return a, err
		}
		switch r, ok := last[job]; {
		case !ok:
			a.end = "it was never complete"
		case r.wrong != "":
			a.end = r.wrong
		case r.tick.Before(to):
			a.end = fmt.Sprintf("it is of %s, and %s was built", r.tick.Format(time.RFC3339), to.Format(time.RFC3339))
		}
	}
	if !c.isBaseline() {
		err = c.judgeObjects(ctx, &a)
	}
	return a, err
}

// judgeTicks compares the builds with the ticks between the first and the last of them.
func (c *column) judgeTicks(ctx context.Context, job string, a *audit) error {
	first, last, err := c.span(ctx, job)
	if err != nil {
		return err
	}
	times := map[int64]int{}
	err = c.DB.Each(ctx, `SELECT tick FROM builds WHERE job = '`+job+`'`, func(scan show.Scan) error {
		var tick int64
		err := scan(&tick)
		times[tick]++
		return err
	})
	if err != nil {
		return err
	}
	for tick := first; len(times) > 0 && !tick.After(last); tick = tick.Add(c.every) {
		a.ticks++
		n := times[tick.Unix()]
		delete(times, tick.Unix())
		a.builds += n
		a.doubled += max(0, n-1)
		if n > 0 {
			continue
		}
		a.lost++
		parts, err := c.DB.Count(ctx, `SELECT count(*) FROM parts WHERE job = $1 AND tick = $2`, job, tick.Unix())
		if err != nil {
			return err
		}
		c.board.Event(c.Name, fmt.Sprintf("the build of %s %s is lost; %d of its parts are recorded", job, tick.Format(time.RFC3339), parts))
	}
	for range times { // builds of what is no tick
		a.builds++
		a.doubled++
	}
	return nil
}

// judgeObjects reads all builds once more, and counts the objects that none of them names.
func (c *column) judgeObjects(ctx context.Context, a *audit) error {
	objects := client(c.objects)
	type build struct {
		job  string
		tick int64
	}
	named, parts := map[string]bool{}, map[build][]object{}
	err := c.DB.Each(ctx, `SELECT job, tick, object, sum FROM parts ORDER BY job, tick, part`, func(scan show.Scan) error {
		var b build
		var o object
		err := scan(&b.job, &b.tick, &o.Name, &o.Sum)
		named[o.Name] = true
		parts[b] = append(parts[b], o)
		return err
	})
	if err != nil {
		return err
	}
	err = c.DB.Each(ctx, `SELECT job, tick FROM builds`, func(scan show.Scan) error {
		var b build
		if err := scan(&b.job, &b.tick); err != nil {
			return err
		}
		r, err := judge(ctx, objects, b.job, time.Unix(b.tick, 0).UTC(), c.parts, parts[b])
		if r.wrong != "" {
			a.harmed++
		}
		return err
	})
	if err != nil {
		return err
	}
	for pages := s3.NewListObjectsV2Paginator(objects, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: aws.String(c.ID + "/")}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list the objects: %w", err)
		}
		for _, found := range page.Contents {
			if !named[aws.ToString(found.Key)] {
				a.unnamed++
			}
		}
	}
	return nil
}

// conclude prints the table, and returns the exit code.
func conclude(b *show.Board, cs []*column) int {
	columns := make([]*show.Column, len(cs))
	for i, c := range cs {
		columns[i] = c.Column
	}
	return show.ConcludeFrom(b, columns, "what the reader has read, and from what is stored after all pods had ended")
}
