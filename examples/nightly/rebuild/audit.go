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
	*reader
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

func (a audit) rows(baseline bool) []show.Row {
	rows := []show.Row{
		show.Number("ticks", a.ticks),
		show.Number("builds recorded", a.builds),
		show.Number("  doubled", a.doubled),
		show.Number("  lost", a.lost),
		show.Number("reads of the index", a.reads),
		show.Number("  a mixture of builds", a.mixtures),
		show.Number("  older than before", a.backwards),
		show.Number("earlier builds changed", a.harmed),
		show.Number("objects that no build has", a.unnamed),
		show.Holds("index at the end is exact", a.end == "", a.end),
	}
	if baseline {
		rows[7].Value, rows[8].Value = "-", "-"
	}
	return rows
}

func (c *column) Judge(ctx context.Context) (exact bool, rows []show.Row, err error) {
	err = c.judge(ctx, &c.audit)
	return c.audit.exact(), c.audit.rows(c.Name == show.Baseline), err
}

func (c *column) judge(ctx context.Context, a *audit) error {
	a.reader = c.reader
	if err := a.read(ctx); err != nil {
		return err
	}
	for _, job := range c.jobs {
		to, err := c.judgeTicks(ctx, job, a)
		if err != nil {
			return err
		}
		switch r, ok := a.last[job]; {
		case !ok:
			a.end = "it was never complete"
		case r.wrong != "":
			a.end = r.wrong
		case r.tick.Before(to):
			a.end = fmt.Sprintf("it is of %s, and %s was built", r.tick.Format(time.RFC3339), to.Format(time.RFC3339))
		}
	}
	if c.Name == show.Baseline {
		return nil
	}
	return c.judgeObjects(ctx, a)
}

// judgeTicks compares the builds with the ticks between the first and the last of them, which it returns.
func (c *column) judgeTicks(ctx context.Context, job string, a *audit) (last time.Time, err error) {
	first, last, err := c.span(ctx, job)
	if err != nil {
		return last, err
	}
	builds := show.NewAudit(c.between(first, last))
	err = c.DB.Each(ctx, `SELECT tick FROM builds WHERE job = '`+job+`'`, func(scan show.Scan) error {
		var unix int64
		err := scan(&unix)
		build := show.Effect{Message: -1} // of what is no tick
		if tick := time.Unix(unix, 0); tick.Sub(first)%c.every == 0 {
			build.Message = c.between(first, tick) - 1
		}
		builds.Add(build)
		return err
	})
	a.ticks += builds.Sent
	a.builds += builds.Effects
	a.doubled += builds.Doubled + builds.Alien
	a.lost += builds.Lost
	return last, err
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
