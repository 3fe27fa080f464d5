package s3store_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serve offers objects without conditional requests, as S3 was before 2024.
func serve(t *testing.T, objects map[string]string) (address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.Method {
		case http.MethodPut:
			if objects["/read-only"] != "" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			objects[r.URL.Path] = string(body)
			w.Header().Set("ETag", `"1"`)
		case http.MethodGet:
			object, ok := objects[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
				return
			}
			_, _ = io.WriteString(w, object)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}
