package s3store_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

// An ETag is a hash: of two contents either may have the higher one, and the same content has the same.
func TestRealWhichNumbersGrow(t *testing.T) {
	c := client(start(t).Address)
	tokentest.Show(t, tokentest.Server{
		Name: "S3",
		Write: func(t testing.TB) {
			if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("lock"), Body: strings.NewReader("held")}); err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("lock")}); err != nil {
				t.Fatal(err)
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"ETag": func(t testing.TB) int64 {
				r, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("lock")})
				if err != nil {
					t.Fatal(err)
				}
				n, err := strconv.ParseInt(strings.Trim(*r.ETag, `"`)[:15], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			},
		},
	})
}
