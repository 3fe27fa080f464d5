// Package dynamostore is a [cas.Store] in a table of Amazon DynamoDB.
//
// The table's partition key is the string "scope", its sort key the binary "key". An item has the
// attributes "value" and "note", both binary, and the string "version", which is random. Any client
// reads them. All items of a store have one partition key, so one store takes about 1,000 writes a
// second. DynamoDB has no number that grows over deletions, so an item has none.
//
// The package hides the conditions and the pages, and which errors leave the outcome of a write
// unknown. It refuses a table with replicas in other regions: there, the last writer wins, whatever
// its condition was.
//
// Package cassink sends up to 32 requests of a transaction at a time. The SDK's HTTP client keeps
// 10 idle connections to a host, and opens new ones for the others each time: raise
// MaxIdleConnsPerHost of its transport.
package dynamostore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Table is the name of the table, which must exist.
	Table string

	// Scope is the partition key of the items. Stores with different scopes have different items.
	// Defaults to "epochfence".
	Scope string
}

// Store is safe for concurrent use.
type Store struct {
	client *dynamodb.Client
	table  string
	scope  string
}

// Open returns a store, after it has looked at the table. client stays the caller's. The store does
// not let it repeat writes.
func Open(ctx context.Context, client *dynamodb.Client, o Options) (*Store, error) {
	s := &Store{client, o.Table, cmp.Or(o.Scope, "epochfence")}
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("dynamostore: open table %q: %w", o.Table, err)
	}
	return s, nil
}

func (s *Store) look(ctx context.Context) error {
	r, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return err
	}
	if err := check(r.Table); err != nil {
		return fmt.Errorf("%w: %w", cas.ErrUnsuitable, err)
	}
	return nil
}

func check(t *types.TableDescription) error {
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range t.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	keys := map[types.KeyType]string{}
	for _, k := range t.KeySchema {
		keys[k.KeyType] = aws.ToString(k.AttributeName)
	}
	if keys[types.KeyTypeHash] != "scope" || keys[types.KeyTypeRange] != "key" ||
		kinds["scope"] != types.ScalarAttributeTypeS || kinds["key"] != types.ScalarAttributeTypeB {
		return errors.New(`its keys are others; create one with: aws dynamodb create-table --billing-mode PAY_PER_REQUEST` +
			` --attribute-definitions AttributeName=scope,AttributeType=S AttributeName=key,AttributeType=B` +
			` --key-schema AttributeName=scope,KeyType=HASH AttributeName=key,KeyType=RANGE --table-name NAME`)
	}
	if len(t.Replicas) > 0 {
		return errors.New("it has replicas in other regions, where conditions are not kept to; use a table of one region")
	}
	return nil
}

// An item of DynamoDB has at most 400 KB, with the names of its attributes.
var facts = cas.Facts{ListsWhole: true, MaxKey: 1024, MaxValue: 300 << 10, MaxNote: 64 << 10}

type attributes = map[string]types.AttributeValue

func id(scope, key string) attributes {
	return attributes{"scope": &types.AttributeValueMemberS{Value: scope}, "key": &types.AttributeValueMemberB{Value: []byte(key)}}
}

// Facts implements [cas.Store]. It looks at the table again: replicas may have been added to it.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	err := s.look(ctx)
	var source string
	if err == nil {
		source, err = s.source(ctx)
	}
	if err != nil {
		return cas.Facts{}, fmt.Errorf("dynamostore: facts: %w", err)
	}
	f := facts
	f.Source = "dynamodb:" + source
	return f, nil
}

// source returns the random name of the items, and writes it if there is none.
func (s *Store) source(ctx context.Context) (string, error) {
	named := id(s.scope+"@source", "source")
	r, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: named, ReturnValues: types.ReturnValueAllNew,
		UpdateExpression:          aws.String("SET version = if_not_exists(version, :name)"),
		ExpressionAttributeValues: attributes{":name": &types.AttributeValueMemberS{Value: rand.Text()}},
	})
	if err != nil {
		return "", err
	}
	return text(r.Attributes["version"]), nil
}

// Get implements [cas.Store]. It reads consistently.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	r, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: id(s.scope, key), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	if r.Item == nil {
		return cas.Item{Key: key}, nil
	}
	i, ok := item(r.Item)
	if !ok {
		return cas.Item{}, failed("get", key, fmt.Errorf(`%w: the item with the scope %q and this key in table %q lacks the binary attribute "value" `+
			`or the string "version"; delete it, or choose another Options.Scope`, cas.ErrForeign, s.scope, s.table))
	}
	return i, nil
}

// item returns an item, if a store has written it.
func item(a attributes) (i cas.Item, ok bool) {
	value, ok := a["value"].(*types.AttributeValueMemberB)
	if i.Version = text(a["version"]); !ok || i.Version == "" {
		return cas.Item{}, false
	}
	i.Key, i.Live, i.Value, i.Note = string(data(a["key"])), true, value.Value, data(a["note"])
	return i, true
}

// binary is never nil, which the client does not send.
func binary(b []byte) types.AttributeValue {
	return &types.AttributeValueMemberB{Value: append([]byte{}, b...)}
}

func data(v types.AttributeValue) []byte {
	b, _ := v.(*types.AttributeValueMemberB)
	if b == nil {
		return nil
	}
	return b.Value
}

func text(v types.AttributeValue) string {
	s, _ := v.(*types.AttributeValueMemberS)
	if s == nil {
		return ""
	}
	return s.Value
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := facts.Check(seen.Key, value, note); err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	a := id(s.scope, seen.Key)
	a["value"], a["note"] = binary(value), binary(note)
	version := rand.Text()
	a["version"] = &types.AttributeValueMemberS{Value: version}
	in := &dynamodb.PutItemInput{TableName: &s.table, Item: a}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = as(seen)
	if _, err := s.client.PutItem(ctx, in, once); err != nil {
		return cas.Item{}, failed("swap", seen.Key, refusal(err))
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Version = version
	return item, nil
}

// as is the condition that an item is as seen.
func as(seen cas.Item) (condition *string, names map[string]string, values attributes) {
	if seen.Version == "" {
		return aws.String("attribute_not_exists(#key)"), map[string]string{"#key": "key"}, nil
	}
	return aws.String("version = :seen"), nil, attributes{":seen": &types.AttributeValueMemberS{Value: seen.Version}}
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	if err := facts.Check(seen.Key, nil, nil); err != nil {
		return failed("delete", seen.Key, err)
	}
	if seen.Version == "" {
		return failed("delete", seen.Key, cas.ErrConflict)
	}
	in := &dynamodb.DeleteItemInput{TableName: &s.table, Key: id(s.scope, seen.Key)}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = as(seen)
	_, err := s.client.DeleteItem(ctx, in, once)
	return failed("delete", seen.Key, refusal(err))
}

// List implements [cas.Store]. It reads consistently, one page of up to 1 MB at a time.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		in := &dynamodb.QueryInput{
			TableName: &s.table, ConsistentRead: aws.Bool(true),
			KeyConditionExpression:    aws.String("#scope = :scope"),
			ExpressionAttributeNames:  map[string]string{"#scope": "scope"},
			ExpressionAttributeValues: attributes{":scope": &types.AttributeValueMemberS{Value: s.scope}},
		}
		if prefix != "" {
			in.KeyConditionExpression = aws.String("#scope = :scope AND begins_with(#key, :prefix)")
			in.ExpressionAttributeNames["#key"] = "key"
			in.ExpressionAttributeValues[":prefix"] = &types.AttributeValueMemberB{Value: []byte(prefix)}
		}
		for pages := dynamodb.NewQueryPaginator(s.client, in); pages.HasMorePages(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			for _, a := range page.Items {
				if i, ok := item(a); ok && !yield(i, nil) {
					return
				}
			}
		}
	}
}

// once does not let the client repeat a request.
func once(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }

// refusal returns the meaning of an error that means that nothing was written.
func refusal(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode() {
	case "ConditionalCheckFailedException":
		return fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded":
		return fmt.Errorf("%w: raise the write capacity of the table or its quota: %w", cas.ErrFull, err)
	case "ItemCollectionSizeLimitExceededException":
		return fmt.Errorf("%w: remove the table's local secondary indexes, or delete what nobody needs: %w", cas.ErrFull, err)
	}
	return err
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dynamostore: %s %q: %w", what, key, err)
}
