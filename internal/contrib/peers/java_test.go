package peers

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// javaPeer is the compiled program of testdata.
type javaPeer struct{ classpath, version, missing string }

func (s *servers) javaVersion(*testing.T) string { return s.java.version }

func (s *servers) withoutJava() string { return s.java.missing }

// compileJava needs a JDK, the jars of Kafka and in EPOCHFENCE_JDBC the driver of PostgreSQL.
func compileJava(t *testing.T, libs string) javaPeer {
	t.Helper()
	driver := os.Getenv("EPOCHFENCE_JDBC")
	if driver == "" {
		return javaPeer{missing: "EPOCHFENCE_JDBC does not name PostgreSQL's driver: make peers fetches it"}
	}
	dir := t.TempDir()
	classpath := filepath.Join(libs, "*") + ":" + driver
	javac := exec.Command("javac", "-encoding", "UTF-8", "-cp", classpath, "-d", dir, "testdata/OffsetInDatabase.java")
	if said, err := javac.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", javac, err, said)
	}
	clients, err := filepath.Glob(filepath.Join(libs, "kafka-clients-*.jar"))
	if err != nil || len(clients) != 1 {
		t.Fatalf("%q, %v", clients, err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(clients[0]), "kafka-clients-"), ".jar")
	return javaPeer{classpath: dir + ":" + classpath, version: version}
}

func (j javaPeer) javaCommand(c config) (*exec.Cmd, error) {
	u, err := url.Parse(c.Database)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	login := url.Values{"user": {u.User.Username()}, "password": {password}}
	cmd := exec.Command("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", j.classpath, "OffsetInDatabase")
	cmd.Env = append(os.Environ(), "NAME="+c.Name, "FREEZE="+c.Freeze, "KAFKA="+c.Kafka, "TOPIC="+c.ID,
		"SESSION="+fmt.Sprint(sessionTimeout.Milliseconds()), "JDBC=jdbc:postgresql://"+u.Host+u.Path+"?"+login.Encode())
	return cmd, nil
}
