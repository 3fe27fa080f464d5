package s3store

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/cas"
)

func TestAServerWithoutRoomIsAFullStore(t *testing.T) {
	for code, full := range map[string]bool{"QuotaExceeded": true, "XMinioStorageFull": true, "InsufficientStorage": true, "SlowDown": true, "InternalError": false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
		}))
		s := &Store{s3.New(s3.Options{
			BaseEndpoint: &server.URL, UsePathStyle: true, Region: "us-east-1",
			Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("user", "password", "")),
		}), Options{Bucket: "items"}}
		if _, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil); errors.Is(err, cas.ErrFull) != full {
			t.Errorf("%s: err = %v, is %q = %t, want %t", code, err, cas.ErrFull, !full, full)
		}
		server.Close()
	}
}
