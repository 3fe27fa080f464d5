// Package s3store is a [cas.Store] in a bucket of Amazon S3, or of a server that has its
// conditional requests: If-None-Match and If-Match of PutObject, and If-Match of DeleteObject. The
// store asks for them when it is opened.
//
// An item is an object. The version is the ETag, which S3 makes of the body alone. So the body
// begins with a nonce and the note: otherwise the same value written again would have the same
// version. Other programs find the value behind the first line of the body and the note, whose
// length is in the first line:
//
//	epochfence 6ZK4… 12
//	the 12 bytes of the note, then the value
//
// The package hides the conditions, the names of objects, and deletions: Delete first replaces the
// object by a marker, and then deletes that. S3 has no number that grows, so an item has none.
//
// Package cassink sends up to 32 requests of a transaction at a time. The SDK's HTTP client keeps 10
// idle connections to a host, and opens new ones for the others each time: raise MaxIdleConnsPerHost of
// its transport.
//
// The store passes its suite on versitygw 1.8.0, and on SeaweedFS 4.48 with one filer, where a write
// that meets another write of the item may wait for a second. In SeaweedFS 4.16, both writes
// succeed (seaweedfs/seaweedfs#8800), which Open cannot detect.
package s3store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Bucket is the name of the bucket, which must exist.
	Bucket string

	// Prefix begins the names of all objects, for instance "epochfence/". It has at most 100 bytes,
	// and may be empty. Objects with other names do not matter.
	Prefix string
}

// Store is safe for concurrent use.
type Store struct {
	client *s3.Client
	o      Options
}

// gone begins the body of a marker, which is shorter than any item's.
const gone = "gone "

// smallest is the number of bytes of the smallest body of an item.
var smallest = int64(len(join(nil, nil)))

// sourceName is the object with the name of the items. No key has it.
const sourceName = "source"

var facts = cas.Facts{MaxKey: 300, MaxValue: 16 << 20, MaxNote: 1 << 20}

// Open returns a store. It returns an error if the server does not refuse what a condition forbids.
// client stays the caller's. The store does not let it repeat writes.
func Open(ctx context.Context, client *s3.Client, o Options) (*Store, error) {
	s := &Store{client, o}
	if len(o.Prefix) > 100 {
		return nil, fmt.Errorf("s3store: Options.Prefix has %d bytes, the limit is 100", len(o.Prefix))
	}
	if err := errors.Join(s.conditions(ctx), s.lifecycle(ctx)); err != nil {
		return nil, fmt.Errorf("s3store: open bucket %q: %w", o.Bucket, err)
	}
	return s, nil
}

// conditions writes and deletes an object that is there, as if it were absent or another one.
func (s *Store) conditions(ctx context.Context) error {
	if _, err := s.source(ctx); err != nil {
		return err
	}
	if _, err := s.put(ctx, sourceName, "", nil); !errors.Is(err, cas.ErrConflict) {
		return ignored("If-None-Match", err)
	}
	const other = `"00000000000000000000000000000000"`
	if _, err := s.put(ctx, sourceName, other, nil); !errors.Is(err, cas.ErrConflict) {
		return ignored("If-Match", err)
	}
	if err := s.remove(ctx, sourceName, other); !errors.Is(err, cas.ErrConflict) {
		return ignored("If-Match of DeleteObject", err)
	}
	return nil
}

// ignored returns the error of a request whose condition did not hold, and that was not refused for it.
func ignored(condition string, err error) error {
	if err == nil {
		return fmt.Errorf("the server ignores %s: use one with conditional writes and deletions", condition)
	}
	return fmt.Errorf("try whether the server refuses by %s: %w", condition, err)
}

// source returns the random name of the items, and writes it if there is none.
func (s *Store) source(ctx context.Context) (string, error) {
	for {
		_, body, err := s.read(ctx, sourceName)
		if err != nil || body != nil {
			return string(body), err
		}
		if _, err := s.put(ctx, sourceName, "", []byte(rand.Text())); err != nil && !errors.Is(err, cas.ErrConflict) {
			return "", err
		}
	}
}

// Facts implements [cas.Store]. It returns [cas.ErrUnsuitable] if a lifecycle rule of the bucket expires
// items, which it cannot see without the privilege s3:GetLifecycleConfiguration.
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	source, err := s.source(ctx)
	if err == nil {
		err = s.lifecycle(ctx)
	}
	if err != nil {
		return cas.Facts{}, fmt.Errorf("s3store: facts: %w", err)
	}
	f := facts
	f.Source = "s3:" + source
	return f, nil
}

func (s *Store) lifecycle(ctx context.Context) error {
	r, err := s.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &s.o.Bucket})
	if err != nil {
		return nil //nolint:nilerr // there are no rules, the server knows none, or the user may not read them
	}
	for _, rule := range r.Rules {
		if rule.Status == types.ExpirationStatusEnabled && rule.Expiration != nil && (rule.Expiration.Days != nil || rule.Expiration.Date != nil) && s.concerns(rule) {
			return fmt.Errorf("%w: the lifecycle rule %q of bucket %q expires objects with the prefix %q; delete it, or exclude the items",
				cas.ErrUnsuitable, aws.ToString(rule.ID), s.o.Bucket, prefixIn(rule))
		}
	}
	return nil
}

// concerns reports whether a rule applies to all items, or is made for some of them. Items have no tags.
func (s *Store) concerns(rule types.LifecycleRule) bool {
	if f := rule.Filter; f != nil && (f.Tag != nil || f.And != nil && len(f.And.Tags) > 0) {
		return false
	}
	prefix := prefixIn(rule)
	return strings.HasPrefix(s.o.Prefix, prefix) || s.o.Prefix != "" && strings.HasPrefix(prefix, s.o.Prefix)
}

func prefixIn(rule types.LifecycleRule) string {
	f := rule.Filter
	switch {
	case f != nil && f.And != nil:
		return aws.ToString(f.And.Prefix)
	case f != nil:
		return aws.ToString(f.Prefix)
	}
	//lint:ignore SA1019 rules from before 2016 have it
	return aws.ToString(rule.Prefix) //nolint:staticcheck // the same for golangci-lint
}

// Get implements [cas.Store].
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	version, body, err := s.read(ctx, name(key))
	if err != nil {
		return cas.Item{}, failed("get", key, err)
	}
	if body == nil {
		return cas.Item{Key: key}, nil
	}
	if bytes.HasPrefix(body, []byte(gone)) {
		return cas.Item{Key: key, Version: version}, nil
	}
	item := cas.Item{Key: key, Live: true, Version: version}
	var ok bool
	if item.Value, item.Note, ok = split(body); !ok {
		return cas.Item{}, failed("get", key, fmt.Errorf("%w: the object %q in bucket %q does not begin with \"epochfence\", a nonce and a length; "+
			"delete it, or choose another Options.Prefix", cas.ErrForeign, s.o.Prefix+name(key), s.o.Bucket))
	}
	return item, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	err := facts.Check(seen.Key, value, note)
	var version string
	if err == nil {
		version, err = s.put(ctx, name(seen.Key), seen.Version, join(value, note))
	}
	if err != nil {
		return cas.Item{}, failed("swap", seen.Key, err)
	}
	item := cas.NewItem(seen.Key, value, note)
	item.Version = version
	return item, nil
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	err := facts.Check(seen.Key, nil, nil)
	switch {
	case err == nil && !seen.Live:
		err = cas.ErrConflict
	case err == nil:
		err = s.markAndDelete(ctx, name(seen.Key), seen.Version)
	}
	return failed("delete", seen.Key, err)
}

// markAndDelete replaces an object by a marker, and then deletes the marker: DeleteObject alone succeeds also
// if there is no object. A marker that is left is no item.
func (s *Store) markAndDelete(ctx context.Context, name, seen string) error {
	marker, err := s.put(ctx, name, seen, []byte(gone+rand.Text()))
	if err == nil {
		_ = s.remove(ctx, name, marker)
	}
	return err
}

// List implements [cas.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		begins := s.o.Prefix + prefixOf(prefix)
		pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{Bucket: &s.o.Bucket, Prefix: &begins})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(cas.Item{}, failed("list", prefix, err))
				return
			}
			for _, object := range page.Contents {
				k, err := key(strings.TrimPrefix(aws.ToString(object.Key), s.o.Prefix))
				if err != nil || !strings.HasPrefix(k, prefix) || aws.ToInt64(object.Size) < smallest {
					continue // somebody else's, or a marker
				}
				if !yield(cas.Item{Key: k, Live: true, Version: aws.ToString(object.ETag)}, nil) {
					return
				}
			}
		}
	}
}

// once does not let the client repeat a request.
func once(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

// read returns an object's ETag and body, which is nil if there is no such object.
//
// A server that keeps the two apart, as versitygw does, may return those of two writes. So read
// compares them, if the ETag is the body's MD5. With some kinds of encryption it is not: then two
// reads must agree.
func (s *Store) read(ctx context.Context, name string) (version string, body []byte, err error) {
	for {
		last, before := version, body
		version, body, err = s.readOnce(ctx, name)
		sum := md5.Sum(body)
		if err != nil || body == nil || strings.Trim(version, `"`) == hex.EncodeToString(sum[:]) ||
			version == last && bytes.Equal(body, before) {
			return version, body, err
		}
	}
}

func (s *Store) readOnce(ctx context.Context, name string) (version string, body []byte, err error) {
	r, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.o.Bucket, Key: aws.String(s.o.Prefix + name)})
	var none *types.NoSuchKey
	if errors.As(err, &none) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = r.Body.Close() }()
	body, err = io.ReadAll(r.Body)
	return aws.ToString(r.ETag), body, err
}

// put writes an object whose ETag is seen, or that does not exist if seen is empty.
func (s *Store) put(ctx context.Context, name, seen string, body []byte) (version string, err error) {
	in := &s3.PutObjectInput{Bucket: &s.o.Bucket, Key: aws.String(s.o.Prefix + name), Body: bytes.NewReader(body), IfMatch: &seen}
	if seen == "" {
		in.IfMatch, in.IfNoneMatch = nil, aws.String("*")
	}
	r, err := s.client.PutObject(ctx, in, once)
	if err != nil {
		return "", conflict(err)
	}
	return aws.ToString(r.ETag), nil
}

func (s *Store) remove(ctx context.Context, name, seen string) error {
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.o.Bucket, Key: aws.String(s.o.Prefix + name), IfMatch: &seen}, once)
	return conflict(err)
}

// conflict returns the meaning of the error of a write. S3 answers NoSuchKey to If-Match if there is no
// object, and ConditionalRequestConflict while another write of the object is under way.
func conflict(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode() {
	case "PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey":
		return fmt.Errorf("%w: %w", cas.ErrConflict, err)
	case "QuotaExceeded", "XMinioStorageFull", "InsufficientStorage": // Ceph, MinIO, and what HTTP calls it
		return fmt.Errorf("%w: make room on the server, or raise the bucket's quota: %w", cas.ErrFull, err)
	case "SlowDown":
		return fmt.Errorf("%w: the server limits the rate of requests: %w", cas.ErrFull, err)
	}
	return err
}

// join returns the body of an object.
func join(value, note []byte) []byte {
	body := fmt.Appendf(nil, "epochfence %s %d\n", rand.Text(), len(note))
	return append(append(body, note...), value...)
}

func split(body []byte) (value, note []byte, ok bool) {
	head, rest, _ := bytes.Cut(body, []byte("\n"))
	var nonce string
	var length int
	if _, err := fmt.Sscanf(string(head), "epochfence %s %d", &nonce, &length); err != nil || length < 0 || length > len(rest) {
		return nil, nil, false
	}
	return rest[length:], rest[:length], true
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("s3store: %s %q: %w", what, key, err)
}
