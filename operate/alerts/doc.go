// Package alerts holds recording rules and alerts for Prometheus in epochfence.rules.yaml, and their
// tests for promtool in epochfence.test.yaml. docs/operating.md has an entry for each alert.
package alerts
