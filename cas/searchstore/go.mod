module github.com/epochfence/epochfence/cas/searchstore

go 1.26.0

require (
	github.com/epochfence/epochfence v0.0.0
	github.com/opensearch-project/opensearch-go/v4 v4.8.1
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

replace github.com/epochfence/epochfence => ../..
