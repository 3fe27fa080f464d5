package pgsink

import "strings"

// session is what a statement changes of the session beyond its transaction. A
// connection whose session was changed is closed and not given back to the pool:
// what one message does must not be met with by another.
type session uint8

const (
	changes     session = 1 << iota // settings, the role, a LISTEN, temporary tables, locks, statements
	deallocates                     // prepared statements, pgx's among them
)

func (s session) has(what session) bool { return s&what != 0 }

// sessionOf judges a text by its looks. What a function does that it calls is not
// seen, and what is seen without being there costs a new connection.
func sessionOf(sql string) (s session) {
	if strings.Contains(sql, "advisory_lock") || strings.Contains(sql, "set_config") && strings.Contains(sql, "false") {
		s |= changes
	}
	for more := true; more; {
		var one string
		one, sql, more = strings.Cut(sql, ";")
		s |= sessionOfOne(one)
	}
	return s
}

func sessionOfOne(sql string) session {
	word, rest := firstWord(sql)
	switch strings.ToLower(word) {
	case "deallocate", "discard":
		return changes | deallocates
	case "listen", "unlisten", "prepare", "reset", "load":
		return changes
	case "set":
		switch word, _ = firstWord(rest); strings.ToLower(word) {
		case "local", "constraints", "transaction":
			return 0
		}
		return changes
	case "create":
		word, rest = firstWord(rest)
		if strings.EqualFold(word, "local") || strings.EqualFold(word, "global") {
			word, rest = firstWord(rest)
		}
		temporary := strings.EqualFold(word, "temp") || strings.EqualFold(word, "temporary")
		if temporary && !strings.Contains(strings.ToLower(rest), "on commit drop") {
			return changes
		}
	case "declare":
		if strings.Contains(strings.ToLower(rest), "with hold") {
			return changes
		}
	case "do":
		return sessionOfBlock(strings.ToLower(rest))
	}
	return 0
}

// sessionOfBlock looks for what a DO block may EXECUTE.
func sessionOfBlock(body string) (s session) {
	if strings.Contains(body, "deallocate") || strings.Contains(body, "discard") {
		s |= changes | deallocates
	}
	for _, word := range []string{"listen", "prepare", "reset", "set ", "temp"} {
		if strings.Contains(body, word) {
			s |= changes
		}
	}
	return s
}

// endsTransaction reports whether a text may end the transaction that it is sent in.
// A text of which it is wrong costs a round trip.
func endsTransaction(sql string) bool {
	sql = strings.ToLower(sql)
	for _, word := range []string{"commit", "rollback", "abort", "prepare transaction"} {
		if strings.Contains(sql, word) {
			return true
		}
	}
	for more := true; more; {
		var one string
		one, sql, more = strings.Cut(sql, ";")
		word, rest := firstWord(one)
		if word != "end" {
			continue
		}
		switch word, _ = firstWord(rest); word {
		case "", "work", "transaction", "and":
			return true
		}
	}
	return false
}

// firstWord cuts the first word off, after spaces and comments.
func firstWord(sql string) (word, rest string) {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v(")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			_, sql, _ = strings.Cut(sql, "*/")
		default:
			end := 0
			for end < len(sql) && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z' || sql[end] == '_') {
				end++
			}
			return sql[:end], sql[end:]
		}
	}
}
