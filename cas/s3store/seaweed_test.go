package s3store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/s3store"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// seaweedEnv is the path of SeaweedFS's program weed. `make stores` fetches it.
const seaweedEnv = "EPOCHFENCE_TEST_SEAWEEDFS"

// seaweedUsers is the configuration of who may do what.
const seaweedUsers = `{"identities": [{"name": "user", "credentials": [{"accessKey": "user", "secretKey": "password"}], "actions": ["Admin"]}]}`

// startSeaweed starts a SeaweedFS with a bucket.
func startSeaweed(t testing.TB) *servertest.Server {
	t.Helper()
	program := os.Getenv(seaweedEnv)
	if program == "" {
		program = servertest.Find(t, "make stores fetches it", "weed")
	}
	ports, err := freeport.Take(7)
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		users := filepath.Join(s.Dir, "users.json")
		if err := os.WriteFile(users, []byte(seaweedUsers), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{
			"server", "-dir=" + s.Dir, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-volume.max=4", "-master.volumeSizeLimitMB=64",
			"-s3", "-s3.config=" + users, "-s3.iam=false", "-s3.port=" + s.Port(), "-s3.port.iceberg=0", "-s3.port.lance=0",
			"-filer.localSocket=" + filepath.Join(s.Dir, "filer"), "-s3.localSocket=" + filepath.Join(s.Dir, "s3"),
		}
		for i, name := range []string{"master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port.grpc"} {
			args = append(args, "-"+name+"="+strconv.Itoa(ports[i]))
		}
		return exec.Command(program, args...)
	})
	servertest.Await(t, "SeaweedFS has a bucket", func() bool {
		_, err = client(s.Address).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)})
		return err == nil
	})
	return s
}

// seaweedRigs returns rigs with prefixes of their own on one server.
func seaweedRigs(t testing.TB) func(t testing.TB) castest.Rig {
	s := startSeaweed(t)
	var rigs atomic.Int64
	return func(testing.TB) castest.Rig {
		prefix := fmt.Sprintf("rig%d/", rigs.Add(1))
		c := client(s.Address)
		return castest.Rig{
			Served: true,
			Races:  10, // a second each
			Open:   func(t testing.TB, via func(string) string) cas.Store { return openAt(t, via(s.Address), prefix) },
			Empty:  func(t testing.TB) { remove(t, c, prefix) },
			Backup: func(t testing.TB) func() {
				saved := objects(t, c, prefix)
				return func() {
					remove(t, c, prefix)
					for name, body := range saved {
						if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &name, Body: bytes.NewReader(body)}); err != nil {
							t.Fatal(err)
						}
					}
				}
			},
		}
	}
}

// objects returns the bodies of the objects whose names begin with prefix.
func objects(t testing.TB, c *s3.Client, prefix string) map[string][]byte {
	t.Helper()
	bodies := map[string][]byte{}
	for pages := s3.NewListObjectsV2Paginator(c, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: &prefix}); pages.HasMorePages(); {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range page.Contents {
			r, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: object.Key})
			if err != nil {
				t.Fatal(err)
			}
			if bodies[*object.Key], err = io.ReadAll(r.Body); err != nil {
				t.Fatal(err)
			}
			_ = r.Body.Close()
		}
	}
	return bodies
}

func remove(t testing.TB, c *s3.Client, prefix string) {
	t.Helper()
	for name := range objects(t, c, prefix) {
		if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &name}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRealSuiteOnSeaweedFS(t *testing.T) { t.Parallel(); castest.Run(t, seaweedRigs(t)) }

func TestRealItemsOnSeaweedFS(t *testing.T) { t.Parallel(); guardtest.Run(t, seaweedRigs(t)) }

func TestRealALifecycleRuleThatExpiresItemsIsNoticedLater(t *testing.T) {
	s := startSeaweed(t)
	c, store := client(s.Address), openAt(t, s.Address, "app/")
	for _, rule := range []struct {
		prefix string
		status types.ExpirationStatus
		wrong  bool
	}{
		{"", types.ExpirationStatusEnabled, true},
		{"app/", types.ExpirationStatusEnabled, true},
		{"app/billing/", types.ExpirationStatusEnabled, true},
		{"app/", types.ExpirationStatusDisabled, false},
		{"logs/", types.ExpirationStatusEnabled, false},
	} {
		_, err := c.PutBucketLifecycleConfiguration(t.Context(), &s3.PutBucketLifecycleConfigurationInput{
			Bucket: aws.String(bucket),
			LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{
				ID: aws.String("tidy"), Status: rule.status, Expiration: &types.LifecycleExpiration{Days: aws.Int32(7)},
				Filter: &types.LifecycleRuleFilter{Prefix: aws.String(rule.prefix)},
			}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, noFacts := store.Facts(t.Context())
		_, notOpened := s3store.Open(t.Context(), c, s3store.Options{Bucket: bucket, Prefix: "app/"})
		for _, err := range []error{noFacts, notOpened} {
			if errors.Is(err, cas.ErrUnsuitable) != rule.wrong || rule.wrong && !strings.Contains(err.Error(), `lifecycle rule "tidy"`) || !rule.wrong && err != nil {
				t.Errorf("%+v: %v", rule, err)
			}
		}
	}
}
