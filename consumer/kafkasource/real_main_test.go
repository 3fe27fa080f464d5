package kafkasource_test

import (
	"os"
	"testing"

	"github.com/epochfence/epochfence/internal/kafkatest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(processEnv); spec != "" {
		os.Exit(processMain(spec))
	}
	os.Exit(kafkatest.Main(m))
}
