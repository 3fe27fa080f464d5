package sqltext

import "strings"

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
