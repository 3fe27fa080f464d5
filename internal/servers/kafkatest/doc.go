// Package kafkatest runs the real Apache Kafka, a JVM in KRaft mode, for tests and examples that
// need more than a fake broker.
//
// Two environment variables say where Kafka comes from:
//
//   - EPOCHFENCE_KAFKA_LIBS is a directory with the broker's jars, as fetched by `make kafka`.
//     Tests then start brokers on free loopback ports. A broker ends with its test or with the test
//     binary.
//   - EPOCHFENCE_TEST_KAFKA is the bootstrap address of a running broker, for tests that need no
//     control over the broker ([Shared]). They make topics and groups there. The command's variable
//     has another name, so that tests do not run on an operator's broker.
//
// With neither, tests that need Kafka skip, or fail if CI=true. Brokers need Java 17 or later, from
// JAVA_HOME or PATH.
package kafkatest
