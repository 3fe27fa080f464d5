module github.com/epochfence/epochfence/lease/gocronlock

go 1.26.0

require (
	github.com/epochfence/epochfence v0.0.0
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/google/uuid v1.6.0
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

replace github.com/epochfence/epochfence => ../..
