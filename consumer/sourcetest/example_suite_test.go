package sourcetest_test

import "testing"

func TestTheHarnessOfTheExamplePlaysTheSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: memsource has the suite in a bubble")
	}
	t.Parallel()
	testSource(t)
}
