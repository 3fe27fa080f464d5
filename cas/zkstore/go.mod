module github.com/epochfence/epochfence/cas/zkstore

go 1.26.0

require github.com/epochfence/epochfence v0.0.0

require github.com/go-zookeeper/zk v1.0.4

replace github.com/epochfence/epochfence => ../..
