package pgschema

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
)

// Texts is a statement that makes the server write values as pgx reads them until the end of the
// transaction, whatever is set for the role. It is for values that travel as text. A handler's
// transaction keeps its settings: there use [Bytea], and numbers for times.
const Texts = "select pg_catalog.set_config('datestyle', 'ISO', true), pg_catalog.set_config('bytea_output', 'hex', true)"

// Bytea scans a bytea in any format and under any bytea_output. NULL is nil.
type Bytea []byte

// ScanBytes implements [pgtype.BytesScanner].
func (b *Bytea) ScanBytes(v []byte) error {
	*b = bytes.Clone(v)
	return nil
}

// ScanText implements [pgtype.TextScanner].
func (b *Bytea) ScanText(v pgtype.Text) (err error) {
	if *b = nil; !v.Valid {
		return nil
	}
	if len(v.String) >= 2 && v.String[:2] == `\x` { // escape doubles a backslash
		*b, err = hex.DecodeString(v.String[2:])
		return err
	}
	*b = make([]byte, 0, len(v.String))
	for s := v.String; s != ""; {
		switch {
		case s[0] != '\\':
			*b, s = append(*b, s[0]), s[1:]
		case len(s) >= 2 && s[1] == '\\':
			*b, s = append(*b, '\\'), s[2:]
		default:
			octal, err := strconv.ParseUint(s[1:min(4, len(s))], 8, 8)
			if err != nil || len(s) < 4 {
				return fmt.Errorf("not a bytea: %.10q", s)
			}
			*b, s = append(*b, byte(octal)), s[4:]
		}
	}
	return nil
}
