package kafkatest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

const (
	hostDirEnv  = "KAFKATEST_HOST_DIR"
	hostLibsEnv = "KAFKATEST_HOST_LIBS"
)

// TestHostABrokerUntilKilled is what the child of the test below runs.
func TestHostABrokerUntilKilled(t *testing.T) {
	libs, dir := os.Getenv(hostLibsEnv), os.Getenv(hostDirEnv)
	if dir == "" {
		return
	}
	b, err := kafkatest.New(t.Context(), libs, dir, kafkatest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(b.Addr)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestBrokerDiesWithTheProcessThatStartedIt(t *testing.T) {
	libs := kafkatest.Libs(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestHostABrokerUntilKilled$")
	cmd.Env = append(os.Environ(), hostDirEnv+"="+t.TempDir(), hostLibsEnv+"="+libs)
	stdin, err := cmd.StdinPipe() // the host lives until it is closed
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimSpace(addr))
	if err != nil {
		t.Fatalf("broker of the child: %v", err)
	}
	defer conn.Close()

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); os.IsTimeout(err) {
		t.Error("the broker outlived its parent by a minute")
	}
}
