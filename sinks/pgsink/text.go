package pgsink

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
)

// This file refuses names that PostgreSQL could not store, before they are sent.

var (
	errNUL     = errors.New("holds a NUL byte, which PostgreSQL cannot store in text")
	errNotUTF8 = errors.New("is not valid UTF-8, which PostgreSQL cannot store in text")
)

func checkText(s string) error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return errNUL
	case !utf8.ValidString(s):
		return errNotUTF8
	default:
		return nil
	}
}

// maxNames limits group and topic to what an index row can hold.
const maxNames = 2000

func checkPartition(p epoch.Partition) error {
	if err := checkText(p.Group); err != nil {
		return fmt.Errorf("pgsink: group %q %w", p.Group, err)
	}
	if err := checkText(p.Topic); err != nil {
		return fmt.Errorf("pgsink: topic %q %w", p.Topic, err)
	}
	if n := len(p.Group) + len(p.Topic); n > maxNames {
		return fmt.Errorf("pgsink: group %.40q… and topic %.40q… have %d bytes together; the limit is %d", p.Group, p.Topic, n, maxNames)
	}
	return nil
}

func checkOrigin(o epoch.Origin) error {
	if err := checkPartition(o.Partition); err != nil {
		return err
	}
	if err := checkText(o.Log); err != nil {
		return fmt.Errorf("pgsink: log id %q of %s %w", o.Log, o.Partition, err)
	}
	if err := checkText(o.Source); err != nil {
		return fmt.Errorf("pgsink: lease source %q of %s %w", o.Source, o.Partition, err)
	}
	return nil
}
