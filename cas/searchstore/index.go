package searchstore

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"

	"github.com/opensearch-project/opensearch-go/v4"

	"github.com/epochfence/epochfence/cas"
)

// This file creates the index and the alias, and decides which settings lose items.

// properties is the part of the mapping that List needs. Note and value are in no index of Lucene's.
const properties = `{"` + own + `":{"dynamic":"false","properties":{"key":{"type":"keyword"},"writes":{"type":"keyword","index":false}}}}`

// Create creates an index whose name is the alias and "-000001", and the alias, unless the alias
// exists. The index has the cluster's default settings, and no fields to search for. Add those with
// PUT ALIAS/_mapping, and replicas with PUT ALIAS/_settings.
//
// It needs the right to create indexes and aliases, which Open does not need.
func Create(ctx context.Context, client *opensearch.Client, o Options) error {
	name := url.PathEscape(o.alias())
	err := do(ctx, client, http.MethodGet, request{path: name}, nil)
	if kindOf(err) == "index_not_found_exception" {
		body := fmt.Appendf(nil, `{"aliases":{%q:{}},"mappings":{"dynamic":"false","properties":%s}}`, o.alias(), properties)
		err = do(ctx, client, http.MethodPut, request{path: name + "-000001", body: body}, nil)
	}
	if err != nil && kindOf(err) != "resource_already_exists_exception" {
		return fmt.Errorf("searchstore: create %q: %w", o.alias(), err)
	}
	return nil
}

// index has the settings of an index, as the server returns them.
type index struct {
	Aliases map[string]struct {
		Filter        json.RawMessage
		IndexRouting  string `json:"index_routing"`
		SearchRouting string `json:"search_routing"`
	}
	Mappings struct {
		Source     json.RawMessage `json:"_source"`
		Properties map[string]any
	}
	Settings map[string]any
}

// source returns the name of the index's history, after it has looked at the index. A snapshot that is
// restored makes another index.uuid, or over a closed index another index.history.uuid.
func (s *Store) source(ctx context.Context) (source string, err error) {
	var indexes map[string]index
	err = do(ctx, s.client, http.MethodGet, request{path: url.PathEscape(s.alias), query: url.Values{"flat_settings": {"true"}}}, &indexes)
	if kindOf(err) == "index_not_found_exception" {
		return "", fmt.Errorf("create the index with searchstore.Create: %w", err)
	}
	if err != nil {
		return "", err
	}
	if len(indexes) != 1 {
		return "", fmt.Errorf("%w: the alias has %d indexes; give it one", cas.ErrUnsuitable, len(indexes))
	}
	for _, i := range indexes {
		if wrong := i.wrong(s.alias); wrong != "" {
			return "", fmt.Errorf("%w: %s", cas.ErrUnsuitable, wrong)
		}
		source, _ = i.Settings["index.uuid"].(string)
		if history, ok := i.Settings["index.history.uuid"].(string); ok {
			source += "/" + history
		}
	}
	return source, nil
}

// wrong returns what would lose items, and what to do about it, or "".
func (i index) wrong(alias string) string {
	as, is := i.Aliases[alias]
	var want map[string]any
	if err := json.Unmarshal([]byte(properties), &want); err != nil {
		panic(err)
	}
	switch {
	case !is:
		return fmt.Sprintf("%q is no alias, so a write may create an index with another mapping; add an alias, and open that", alias)
	case as.Filter != nil || as.IndexRouting != "" || as.SearchRouting != "":
		return "the alias has a filter or a routing; use an alias that has neither"
	case !reflect.DeepEqual(i.Mappings.Properties[own], want[own]):
		return fmt.Sprintf("the index has another mapping of %q; use searchstore.Create, or: PUT %s/_mapping {\"properties\":%s}", own, alias, properties)
	case i.Mappings.Source != nil:
		return "the index leaves out parts of _source; create one that does not"
	case i.Settings["index.derived_source.enabled"] == "true":
		return "the index does not store _source; create one without index.derived_source.enabled"
	case i.Settings["index.translog.durability"] == "async":
		return fmt.Sprintf(`a crash of the server loses acknowledged writes; run: PUT %s/_settings {"index.translog.durability":"request"}`, alias)
	}
	for _, pipeline := range []string{"index.default_pipeline", "index.final_pipeline"} {
		if name, has := i.Settings[pipeline]; has && name != "_none" {
			return fmt.Sprintf("the ingest pipeline %q may change items; run: PUT %s/_settings {%q:\"_none\"}", name, alias, pipeline)
		}
	}
	return ""
}
