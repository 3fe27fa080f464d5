package s3store_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/s3store"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

// serverEnv is the path of versitygw, which serves a directory by S3's protocol. `make stores`
// builds it.
const serverEnv = "EPOCHFENCE_TEST_VERSITYGW"

const bucket = "items"

func start(t testing.TB) *servertest.Server {
	t.Helper()
	program := os.Getenv(serverEnv)
	if program == "" {
		program = servertest.Find(t, "make stores builds it", "versitygw")
	}
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		root := filepath.Join(s.Dir, "objects")
		if err := os.MkdirAll(filepath.Join(root, bucket), 0o755); err != nil {
			t.Fatal(err)
		}
		return exec.Command(program, "--port", s.Address, "--access", "user", "--secret", "password", "posix", root)
	})
	return s
}

func client(address string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), UsePathStyle: true, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("user", "password", ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{}},
	})
}

func open(t testing.TB, address string) cas.Store {
	t.Helper()
	return openAt(t, address, "app/")
}

func openAt(t testing.TB, address, prefix string) cas.Store {
	t.Helper()
	s, err := s3store.Open(t.Context(), client(address), s3store.Options{Bucket: bucket, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB) castest.Rig {
	s := start(t)
	objects := filepath.Join(s.Dir, "objects", bucket)
	fresh := filepath.Join(s.Dir, "fresh")
	empty := func(t testing.TB) {
		if err := os.Mkdir(fresh, 0o755); err != nil {
			t.Fatal(err)
		}
		replace(t, objects, fresh)
	}
	return castest.Rig{
		Served: true,
		Open:   func(t testing.TB, via func(string) string) cas.Store { return open(t, via(s.Address)) },
		Empty:  empty,
		Foreign: map[string]func(testing.TB, string) []byte{
			"an object":       func(t testing.TB, key string) []byte { return theirs(t, s.Address, key, strings.Repeat("theirs ", 20)) },
			"an empty object": func(t testing.TB, key string) []byte { return theirs(t, s.Address, key, "") },
		},
		Backup: func(t testing.TB) func() {
			saved := filepath.Join(s.Dir, "saved")
			copied(t, objects, saved)
			return func() { copied(t, saved, fresh); replace(t, objects, fresh) }
		},
	}
}

// theirs writes an object.
func theirs(t testing.TB, address, key, body string) []byte {
	t.Helper()
	_, err := client(address).PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("app/" + key + "~"), Body: strings.NewReader(body)})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(body)
}

// replace replaces a directory in which the server may be writing at the same time.
func replace(t testing.TB, old, by string) {
	t.Helper()
	servertest.Await(t, "the directory is replaced", func() bool {
		return os.RemoveAll(old) == nil && os.Rename(by, old) == nil
	})
}

// copied copies a directory with the extended attributes in which the server keeps ETags.
func copied(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestRealSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestRealLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestRealItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestRealConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestRealAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		s := start(t)
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store { return open(t, s.Address) },
			Kill: s.Restart,
		}
	}
	castest.RunKilled(t, create)
	leasetest.RunKilled(t, create)
	cassinktest.RunKilled(t, create)
}

func TestRealTheCommandReachesIt(t *testing.T) {
	s := start(t)
	commandtest.Reaches(t, open(t, s.Address), "s3://"+bucket+"/app/?use_path_style=true",
		"AWS_ENDPOINT_URL_S3=http://"+s.Address, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=user", "AWS_SECRET_ACCESS_KEY=password")
}

func TestRealCommitRow(t *testing.T) { cassinktest.Measure(t, "versitygw (S3)", rig) }

func TestRealLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "S3",
		Number: "a counter in the value: it restarts if the key is deleted",
		Needs:  "conditional writes (`If-Match`); a listing each tenth of the TTL has a price",
	}, rig)
}

func TestRealABucketThatIsGoneHasNoAbsentItems(t *testing.T) {
	s := start(t)
	store := open(t, s.Address)
	if err := os.RemoveAll(filepath.Join(s.Dir, "objects", bucket)); err != nil {
		t.Fatal(err)
	}
	_, got := store.Get(t.Context(), "orders")
	_, swapped := store.Swap(t.Context(), cas.Item{Key: "orders"}, nil, nil)
	for what, err := range map[string]error{"get": got, "swap": swapped} {
		if err == nil || errors.Is(err, cas.ErrConflict) {
			t.Errorf("%s: err = %v", what, err)
		}
	}
}

func TestRealAMarkerThatIsLeftIsNoItem(t *testing.T) {
	s := start(t)
	store, c := open(t, s.Address), client(s.Address)
	if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("app/orders~"), Body: strings.NewReader("gone 0123456789")}); err != nil {
		t.Fatal(err)
	}
	for item, err := range store.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", item, err)
	}
	item, err := store.Get(t.Context(), "orders")
	if err != nil || item.Live || item.Version == "" {
		t.Fatalf("%+v, %v", item, err)
	}
	if _, err := store.Swap(t.Context(), item, []byte("x"), nil); err != nil {
		t.Error(err)
	}
}

// A server that does not know a header carries the request out.
func TestAServerWithoutConditionsIsRefused(t *testing.T) {
	objects := map[string]string{}
	address := serve(t, objects)
	_, err := s3store.Open(t.Context(), client(address), s3store.Options{Bucket: bucket})
	if err == nil || !strings.Contains(err.Error(), "the server ignores If-None-Match") || strings.Contains(err.Error(), "%!") {
		t.Errorf("err = %v", err)
	}
	objects["/read-only"] = "yes"
	_, err = s3store.Open(t.Context(), client(address), s3store.Options{Bucket: bucket})
	if err == nil || !strings.Contains(err.Error(), "403") || strings.Contains(err.Error(), "ignores") {
		t.Errorf("a server that lets nobody write: err = %v", err)
	}
}
