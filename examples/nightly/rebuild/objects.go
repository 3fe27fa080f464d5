package rebuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/s3store"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/waits"
)

const (
	bucket = "nightly"
	access = "nightly"
	secret = "nightly-secret"
	region = "us-east-1"
)

// startObjects starts versitygw, an S3 server, in this process, with its objects below dir. There is one
// in a process at a time. It makes the bucket.
func startObjects(ctx context.Context, dir string, atEnd func(func())) (address string, err error) {
	root := filepath.Join(dir, "objects")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	if err := (meta.XattrMeta{}).Test(root); err != nil {
		return "", fmt.Errorf("start an S3 server in %s: it needs extended attributes, which this file system has not; set TMPDIR to a directory on another one: %w", dir, err)
	}
	files, err := posix.New(root, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 64})
	if err != nil {
		return "", fmt.Errorf("start an S3 server in %s: %w", dir, err)
	}
	ports, err := freeport.Take(1)
	if err != nil {
		return "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		ended <- embedgw.RunVersityGW(serving, files, &embedgw.Config{
			RootUserAccess: access, RootUserSecret: secret, Region: region, Ports: []string{address},
			IAMService:     auth.NewIAMServiceSingle(auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}),
			MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10_000, Quiet: true, KeepAlive: true,
		})
		close(ended)
	}()
	atEnd(func() {
		connections.CloseIdleConnections() // which the server would wait for
		end()
		<-ended //nolint:errcheck // it was told to end
	})
	if err := makeBucket(ctx, address, ended); err != nil {
		return "", fmt.Errorf("start an S3 server: %w", err)
	}
	return address, nil
}

// connections are those of all clients of this process.
var connections = &http.Transport{MaxIdleConnsPerHost: 16}

// makeBucket waits until the server answers, unless it has ended.
func makeBucket(ctx context.Context, address string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	for {
		_, err := client(address).CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket)})
		if err == nil {
			return nil
		}
		select {
		case over := <-ended:
			return errors.Join(over, errors.New("it has ended"))
		default:
		}
		if !waits.Sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

func client(address string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), UsePathStyle: true, Region: region,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
		HTTPClient:  &http.Client{Transport: connections},
	})
}

// openPointers opens a column's pointers, which are beside its parts in the bucket.
func openPointers(ctx context.Context, c *s3.Client, id string) (cas.Store, error) {
	return s3store.Open(ctx, c, s3store.Options{Bucket: bucket, Prefix: id + "-pointers/"})
}

// get returns an object and its ETag.
func get(ctx context.Context, c *s3.Client, name string) (content []byte, tag string, err error) {
	o, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &name})
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { _ = o.Body.Close() }()
	content, err = io.ReadAll(o.Body)
	return content, aws.ToString(o.ETag), err
}

func put(ctx context.Context, c *s3.Client, name string, content []byte) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &name, Body: bytes.NewReader(content)})
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
