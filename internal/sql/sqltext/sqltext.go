// Package sqltext reads the words of SQL texts: keywords and names, without literals
// and comments. It is for sinks, which must know what a handler's statement does to
// the transaction and the session before they send it.
package sqltext

import "strings"

// Dialect is what a database takes for a literal, a name or a comment.
type Dialect struct {
	DollarQuotes   bool // $tag$ … $tag$ is a literal
	EscapeStrings  bool // E'…' has backslash escapes, and '…' may have
	Backslashes    bool // '…' and "…" are literals with backslash escapes
	NestedComments bool // /* /* */ */ is one comment
	RunComments    bool // /*! … */ and /*M! … */ are run, by some versions
	HashComments   bool // # begins a comment, and -- only before a space
	Functions      bool // a function may write
	Backticks      bool // `…` is a name
	Brackets       bool // […] is a name
	Returns        bool // a carriage return ends a comment that begins with --
	TclVariables   bool // $a(…) is a parameter, and so are those with @, # and :
	ByteOrderMarks bool // U+FEFF is a space where a word may begin
}

var (
	// PostgreSQL is as in https://www.postgresql.org/docs/current/sql-syntax-lexical.html.
	PostgreSQL = Dialect{DollarQuotes: true, EscapeStrings: true, NestedComments: true, Returns: true, Functions: true}

	// SQLite is as in https://www.sqlite.org/lang_keywords.html and lang_comment.html.
	SQLite = Dialect{Backticks: true, Brackets: true, TclVariables: true, ByteOrderMarks: true}

	// MariaDB is as in https://mariadb.com/kb/en/comment-syntax/ and string-literals, and MySQL, without
	// the modes ANSI_QUOTES and NO_BACKSLASH_ESCAPES.
	MariaDB = Dialect{Backslashes: true, RunComments: true, HashComments: true, Functions: true, Backticks: true}
)

// Kind is what [Scanner.Next] has found.
type Kind int

// The kinds.
const (
	End       Kind = iota // of the text
	Word                  // a keyword or name
	Semicolon             // the end of a statement
	Other                 // an operator, a literal, a parenthesis
)

// longest is how much of a word is kept. No word that anybody asks for is longer.
const longest = 40

// Scanner reads a text.
type Scanner struct {
	d    Dialect
	text string
	word [longest]byte
	n    int // of word

	// Symbol is what the last [Other] is if it is one character, and otherwise 0.
	Symbol byte

	// Unsure is set when the text may mean something else to the database than to
	// this package: a quote that never ends; a backslash before one in a literal,
	// which is an escape or not by a setting of the session; a parameter with a
	// parenthesis, which hides a quote; a name with Unicode escapes, U&"…", which may be
	// another one than it looks like; a comment that some versions run, whose words count.
	Unsure bool
}

// New returns a scanner at the beginning of text.
func New(text string, d Dialect) *Scanner { return &Scanner{d: d, text: text} }

// Word is what the last [Word] is, in lower case, or what is in the last literal, with
// which SQLite puts up as a name. It is valid until the next call of Next.
func (s *Scanner) Word() []byte { return s.word[:s.n] }

// Next reads on.
func (s *Scanner) Next() Kind {
	s.Symbol, s.n = 0, 0
	for s.text != "" {
		c := s.text[0]
		switch {
		case c == ' ' || c >= '\t' && c <= '\r':
			s.text = s.text[1:]
		case c == '-' && s.at("--") && (!s.d.HashComments || len(s.text) == 2 || s.text[2] <= ' ' || s.text[2] == 0x7F):
			s.line()
		case c == '#' && s.d.HashComments:
			s.line()
		case c == '/' && s.d.RunComments && (s.at("/*!") || s.at("/*M!")):
			s.Unsure = true
			s.text = strings.TrimLeft(s.text[strings.IndexByte(s.text, '!')+1:], "0123456789")
		case c == '/' && s.at("/*"):
			s.comment()
		case c == ';':
			s.text = s.text[1:]
			return Semicolon
		case c == '\'' || c == '"' && s.d.Backslashes:
			s.literal(c, s.d.Backslashes)
			return Other
		case (c|0x20) == 'e' && s.d.EscapeStrings && len(s.text) > 1 && s.text[1] == '\'':
			s.text = s.text[1:]
			s.literal('\'', true)
			return Other
		case c == '"':
			s.quoted('"')
			return Word
		case s.d.Backticks && c == '`':
			s.quoted('`')
			return Word
		case s.d.Brackets && c == '[':
			s.quoted(']')
			return Word
		case c == '$' && s.d.DollarQuotes:
			s.dollar()
			return Other
		case c == 0xEF && s.d.ByteOrderMarks && s.at("\uFEFF"):
			s.text = s.text[3:]
		case s.d.TclVariables && (c == '$' || c == '@' || c == '#' || c == ':'):
			s.variable()
			return Other
		case begins(c):
			s.plain()
			return Word
		case c >= '0' && c <= '9':
			s.number()
			return Other
		default:
			s.text, s.Symbol = s.text[1:], c
			return Other
		}
	}
	return End
}

func (s *Scanner) at(what string) bool { return len(s.text) >= len(what) && s.text[:len(what)] == what }

func begins(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80 }

func (s *Scanner) keep(c byte) {
	if s.n == len(s.word) {
		return
	}
	if c >= 'A' && c <= 'Z' {
		c |= 0x20
	}
	s.word[s.n] = c
	s.n++
}

func continues(c byte) bool { return begins(c) || c == '$' || c >= '0' && c <= '9' }

func (s *Scanner) plain() {
	s.n = 0
	i := 0
	for ; i < len(s.text) && continues(s.text[i]); i++ {
		s.keep(s.text[i])
	}
	s.text = s.text[i:]
	if s.d.EscapeStrings && s.n == 1 && s.word[0] == 'u' && s.at(`&"`) {
		s.Unsure = true
	}
}

// variable reads a parameter of SQLite's, or the character that begins one.
func (s *Scanner) variable() {
	i := 1
	for i < len(s.text) && (continues(s.text[i]) || s.text[i] == ':') {
		i++
	}
	s.Unsure = s.Unsure || i > 1 && i < len(s.text) && s.text[i] == '('
	s.text = s.text[i:]
}

func (s *Scanner) number() {
	i := 1
	for i < len(s.text) && (s.text[i] >= '0' && s.text[i] <= '9' || s.text[i] == '.' || begins(s.text[i])) {
		i++
	}
	s.text = s.text[i:]
}

func (s *Scanner) line() {
	i := 0
	for i < len(s.text) && s.text[i] != '\n' && (s.text[i] != '\r' || !s.d.Returns) {
		i++
	}
	s.text = s.text[i:]
}

func (s *Scanner) comment() {
	depth, i := 1, 2
	for ; i < len(s.text) && depth > 0; i++ {
		if i+1 == len(s.text) {
			continue
		}
		switch two := s.text[i : i+2]; {
		case two == "*/":
			depth--
			i++
		case two == "/*" && s.d.NestedComments:
			depth++
			i++
		}
	}
	s.Unsure = s.Unsure || depth > 0
	s.text = s.text[i:]
}

// literal reads a literal at its first quote.
func (s *Scanner) literal(quote byte, escapes bool) {
	s.n = 0
	i := 1
	for ; i < len(s.text); i++ {
		switch s.text[i] {
		case '\\':
			if escapes {
				i++
			} else if s.d.EscapeStrings && i+1 < len(s.text) && s.text[i+1] == '\'' {
				s.Unsure = true
			}
		case quote:
			if i+1 == len(s.text) || s.text[i+1] != quote {
				s.text = s.text[i+1:]
				return
			}
			i++
		}
		s.keep(s.text[min(i, len(s.text)-1)])
	}
	s.Unsure, s.text = true, ""
}

// quoted reads a name in quotes.
func (s *Scanner) quoted(end byte) {
	s.n = 0
	for i := 1; i < len(s.text); i++ {
		if s.text[i] != end {
			s.keep(s.text[i])
			continue
		}
		if i+1 == len(s.text) || s.text[i+1] != end || end == ']' {
			s.text = s.text[i+1:]
			return
		}
		s.keep(end)
		i++
	}
	s.Unsure, s.text = true, ""
}

// dollar reads a literal in dollar quotes, or a parameter.
func (s *Scanner) dollar() {
	i := 1
	for i < len(s.text) && (begins(s.text[i]) || i > 1 && s.text[i] >= '0' && s.text[i] <= '9') {
		i++
	}
	if i == len(s.text) || s.text[i] != '$' { // $1
		s.text = s.text[1:]
		return
	}
	tag := s.text[:i+1]
	for j := i + 1; j+len(tag) <= len(s.text); j++ {
		if s.text[j:j+len(tag)] == tag {
			s.text = s.text[j+len(tag):]
			return
		}
	}
	s.Unsure, s.text = true, ""
}

// Split returns the statements of a script of our own, for drivers that take one at a time.
func Split(script string, d Dialect) (statements []string) {
	s := New(script, d)
	some := false // the statement has a token
	for {
		kind := s.Next()
		if kind != Semicolon && kind != End {
			some = true
			continue
		}
		read := len(script) - len(s.text)
		if one := strings.TrimSuffix(strings.TrimSpace(script[:read]), ";"); some {
			statements = append(statements, one)
		}
		script, some = script[read:], false
		if kind == End {
			return statements
		}
	}
}

// Touch is what a text does to what savepoints protect.
type Touch struct {
	Reads bool // it certainly writes nothing
	Sets  bool // it sets a savepoint
	Back  bool // it goes back to a savepoint
}

// TouchOf judges a text by its words. Where functions may write, a query that calls a function reads only if the
// function is a well-known one.
func TouchOf(text string, d Dialect) Touch {
	t := Touch{Reads: true}
	s := New(text, d)
	var first, before string // the statement's first word; the word just before
	var dot, qualified bool  // the last token is a dot; the last word comes after one
	for {
		switch s.Next() {
		case Word:
			w := string(s.Word())
			if first == "" {
				first = w
				t.Sets = t.Sets || w == "savepoint"
				t.Reads = t.Reads && (w == "select" || w == "with" || w == "values" || w == "table" || w == "show" || w == "explain")
			} else {
				t.Back = t.Back || first == "rollback" && w == "to"
				t.Reads = t.Reads && !writes(w, before)
			}
			before, qualified, dot = w, dot && before != "pg_catalog", false
		case Other:
			if s.Symbol == '(' && before != "" && d.Functions && (qualified || !harmless[before]) {
				t.Reads = false
			}
			if dot = s.Symbol == '.'; !dot {
				before = ""
			}
		case Semicolon:
			first, before, dot = "", "", false
		case End:
			t.Reads = t.Reads && !s.Unsure
			return t
		}
	}
}

func writes(word, before string) bool {
	switch word {
	case "insert", "delete", "merge", "into", "analyze":
		return true
	case "update": // FOR UPDATE, FOR NO KEY UPDATE
		return before != "for" && before != "key"
	}
	return false
}

// harmless are words that may precede a parenthesis: keywords, types, and functions that only read.
var harmless = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`as in and or not where from on by over filter group any all some exists select values
		using case when then else distinct union except intersect having limit offset with lateral row cast between like ilike is
		materialized join within order explain table recursive return returning only
		numeric decimal varchar char character varying bit time timestamp timestamptz interval array
		count sum min max avg bool_and bool_or every array_agg string_agg json_agg jsonb_agg json_object_agg jsonb_object_agg
		row_number rank dense_rank percent_rank ntile lag lead first_value last_value nth_value percentile_cont percentile_disc mode
		coalesce nullif greatest least lower upper initcap length char_length octet_length trim btrim ltrim rtrim lpad rpad
		substr substring position overlay strpos left right concat concat_ws replace regexp_replace regexp_match split_part reverse
		repeat format quote_ident quote_literal md5 sha256 encode decode chr ascii to_char to_number to_hex translate starts_with
		abs ceil ceiling floor round trunc mod div sign power sqrt random
		now clock_timestamp statement_timestamp date_trunc date_part extract age to_date to_timestamp make_date make_interval
		make_timestamptz timezone gen_random_uuid current_setting current_schema current_database version
		unnest generate_series array_length array_position array_append array_cat array_remove array_to_string string_to_array cardinality
		to_json to_jsonb row_to_json json_build_object jsonb_build_object json_build_array jsonb_build_array
		json_array_length jsonb_array_length json_array_elements jsonb_array_elements json_array_elements_text jsonb_array_elements_text
		json_each jsonb_each json_each_text jsonb_each_text jsonb_set jsonb_strip_nulls json_extract_path_text jsonb_extract_path_text
		jsonb_path_query jsonb_path_exists jsonb_typeof
		to_tsvector to_tsquery plainto_tsquery websearch_to_tsquery ts_rank pg_typeof`) {
		words[w] = true
	}
	return words
}()
