package dynamostore_test

import (
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestRealWhichNumbersGrow(t *testing.T) {
	c := client(start(t).Address)
	const table = "locks"
	create(t, c, table, types.ScalarAttributeTypeB)
	key := map[string]types.AttributeValue{
		"scope": &types.AttributeValueMemberS{Value: "app"}, "key": &types.AttributeValueMemberB{Value: []byte("lock")},
	}
	tokentest.Show(t, tokentest.Server{
		Name: "DynamoDB",
		Write: func(t testing.TB) {
			_, err := c.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
				TableName: aws.String(table), Key: key, UpdateExpression: aws.String("ADD #n :one"), ExpressionAttributeNames: map[string]string{"#n": "counter"},
				ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if _, err := c.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String(table), Key: key}); err != nil {
				t.Fatal(err)
			}
		},
		Backup: func(t testing.TB) func() { return backup(t, c, table) },
		Numbers: map[string]func(t testing.TB) int64{
			"ADD to an attribute": func(t testing.TB) int64 {
				r, err := c.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String(table), Key: key, ConsistentRead: aws.Bool(true)})
				if err != nil {
					t.Fatal(err)
				}
				n, err := strconv.ParseInt(r.Item["counter"].(*types.AttributeValueMemberN).Value, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			},
		},
	})
}
