// Package kafkatest runs the real Apache Kafka, a JVM in KRaft mode, for tests
// and examples that a fake broker cannot serve.
//
// Two environment variables say where Kafka comes from:
//
//   - EPOCHFENCE_KAFKA_LIBS is a directory with the broker's jars, as fetched
//     by `make kafka`. Every broker is then started here, on free loopback
//     ports, and is gone when its test ends or the test binary dies.
//   - EPOCHFENCE_TEST_KAFKA is the bootstrap address of a running broker. It serves
//     the tests that need no control over the broker ([Shared]), which make topics and groups there. The command's own variable is another
//     one: whoever has set that does not want tests on it.
//
// With neither, tests that need Kafka skip, and fail where CI=true. Brokers
// need a Java 17 or later, from JAVA_HOME or PATH.
package kafkatest
