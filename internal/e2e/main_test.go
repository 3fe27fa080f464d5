package e2e_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// brokerEnv makes this binary a broker instead of tests. Its value is the
// number of partitions.
const brokerEnv = "EPOCHFENCE_E2E_BROKER"

// Most tests wait for a server that is away. The command line goes before this.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6")
	if spec := os.Getenv(processEnv); spec != "" {
		os.Exit(processMain(spec))
	}
	for env, main := range map[string]func(spec string) error{takeoverEnv: takeoverMain, jobsEnv: jobsMain, stormEnv: stormMain, brokerEnv: brokerMain} {
		spec := os.Getenv(env)
		if spec == "" {
			continue
		}
		if err := main(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(kafkatest.Main(m))
}

// workerCommand is this binary as a process that env makes a worker of, by a spec in JSON.
func workerCommand(t testing.TB, env string, spec any) *exec.Cmd {
	t.Helper()
	packed, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env+"="+string(packed))
	return cmd
}

// startWorker starts a worker. It is killed when the test ends, and ends by itself when this process is gone, with
// its standard input.
func startWorker(t testing.TB, name, env string, spec any, log *processLog) *exec.Cmd {
	t.Helper()
	cmd := workerCommand(t, env, spec)
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s logged at the end\n%s", name, log.cut())
		}
	})
	return cmd
}

// endsWithInput ends a worker when whoever has started it is gone.
func endsWithInput() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

// processLog is what a process has logged.
type processLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *processLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// cut returns what was logged since the last cut.
func (l *processLog) cut() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// brokerMain serves a topic without end until its standard input ends, with the
// process that started it.
func brokerMain(partitions string) error {
	n, err := strconv.ParseInt(partitions, 10, 32)
	if err != nil {
		return err
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(n), topic),
		kfake.SyntheticFetch(kfake.SyntheticBatch{Records: 100, RecordBytes: 100, RandomFrac: 1}))
	if err != nil {
		return err
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// endlessBroker starts a process that serves a topic, whose records have 100
// bytes and no end, and returns its address.
func endlessBroker(t *testing.T, partitions int) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), brokerEnv+"="+strconv.Itoa(partitions))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, readErr := bufio.NewReader(stdout).ReadString('\n')
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the broker: %v", err)
		}
	})
	if readErr != nil {
		t.Fatalf("the broker did not start: %v", readErr)
	}
	return strings.TrimSpace(addr)
}
