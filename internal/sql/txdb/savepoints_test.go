package txdb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// connection is one, with savepoints.
type connection struct {
	writes []int
	marks  []mark
}

type mark struct {
	name  string
	since int
}

func (c *connection) send(text string) error {
	for one := range strings.SplitSeq(text, "; ") {
		words := strings.Fields(one)
		name := words[len(words)-1]
		if words[0] == "SAVEPOINT" {
			c.marks = append(c.marks, mark{name, len(c.writes)})
			continue
		}
		i := slices.IndexFunc(c.marks, func(m mark) bool { return m.name == name })
		if i < 0 {
			return fmt.Errorf("no savepoint %s", name)
		}
		if words[0] == "ROLLBACK" {
			c.writes, c.marks = c.writes[:c.marks[i].since], c.marks[:i+1]
		} else {
			c.marks = c.marks[:i]
		}
	}
	return nil
}

// To package database/sql, a DB and each Tx have a connection of their own.
func TestWhatIsCommittedIsWhatDatabaseSQLWouldKeep(t *testing.T) {
	committed, refused := 0, 0
	for seed := range uint64(50_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var (
			s      txdb.Savepoints
			c      connection
			open   []txdb.Handle
			wrote  = map[txdb.Handle][]int{}
			kept   []int
			story  []string
			direct = []txdb.Handle{{}, {DB: true}} // the message's own transaction, and the DB
		)
		for n := range 1 + r.IntN(9) {
			switch k := r.IntN(6); {
			case k == 0:
				h := txdb.Handle{Savepoint: fmt.Sprint("t", n), DB: true}
				if s.Begin(h, c.send) == nil {
					open = append(open, h)
					story = append(story, "begin "+h.Savepoint)
				}
			case k < 4:
				all := slices.Concat(open, direct)
				h := all[r.IntN(len(all))]
				did, err := s.Sends(h, "insert into t values (1)", sqltext.SQLite)
				if err = errors.Join(err, s.Use(h), s.Failed()); err != nil {
					continue
				}
				c.writes = append(c.writes, n)
				did()
				if h.Savepoint == "" {
					kept = append(kept, n)
				}
				wrote[h] = append(wrote[h], n)
				story = append(story, fmt.Sprintf("%d through %+v", n, h))
			case len(open) > 0:
				i := r.IntN(len(open))
				h := open[i]
				open = slices.Delete(open, i, i+1)
				if k == 4 {
					if s.Commit(h, c.send) == nil {
						kept = append(kept, wrote[h]...)
					}
					story = append(story, "commit "+h.Savepoint)
				} else {
					_ = s.Rollback(h, c.send)
					story = append(story, "rollback "+h.Savepoint)
				}
			}
		}
		if s.Err() != nil {
			refused++
			continue
		}
		committed++
		slices.Sort(kept)
		if !slices.Equal(kept, c.writes) {
			t.Fatalf("seed %d: %q: %v is committed, want %v", seed, story, c.writes, kept)
		}
	}
	t.Logf("%d committed, %d refused", committed, refused)
	if committed < 1000 || refused < 1000 {
		t.Errorf("only %d committed, or only %d refused", committed, refused)
	}
}
