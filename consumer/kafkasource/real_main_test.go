package kafkasource_test

import (
	"os"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

func TestMain(m *testing.M) {
	os.Exit(kafkatest.Main(m))
}
