package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/internal/waits"
)

// This file waits for the cluster at the start, and decides which errors end Run at once.

// soonPatience limits the tries after an error that usually needs an operator: a broker that closes
// the connection at the first request, or does not know a topic. It may also be starting or behind.
const soonPatience = 3 * time.Second

// Pauses between tries after a transient error.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
)

// reach reads the ids of the cluster and the topics, and checks that we may use the group's
// coordinator. It tries for StartTimeout at most, and gives up at once if another try cannot help.
func (s *Source) reach(ctx context.Context) error {
	cluster := waits.Server{Name: "Kafka at " + s.seeds(), Timeout: s.set.StartTimeout, Log: s.log, Patience: s.patience}
	after, err := cluster.Wait(ctx, s.tryReachUntil)
	if err != nil {
		return s.unreached(err, after)
	}
	return nil
}

func (s *Source) seeds() string { return strings.Join(s.set.seeds, ", ") }

// tryReachUntil is tryReach that ends with ctx. kgo's first request to a broker that accepts the
// connection and never answers ends only with the client.
func (s *Source) tryReachUntil(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.tryReach(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // it says more than ctx.Err
		return err
	default:
		return ctx.Err()
	}
}

func (s *Source) tryReach(ctx context.Context) error {
	if err := s.ping(ctx); err != nil {
		return err
	}
	cluster, err := s.topics.ask(ctx)
	if err != nil {
		return err
	}
	if cluster == "" {
		return errNoClusterID
	}
	s.cluster = cluster
	if err := s.topics.err(); err != nil {
		return err
	}
	return s.findGroup(ctx)
}

// ping returns nil as soon as a broker answers. It is kgo's Ping with a new request for each
// broker. Ping shares one request: a broker's goroutine reads it while another broker's goroutine
// writes it, which the race detector reports.
func (s *Source) ping(ctx context.Context) (err error) {
	for _, b := range slices.Concat(s.reader.DiscoveredBrokers(), s.reader.SeedBrokers()) {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{} // only the brokers
		if _, err = b.Request(ctx, req); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

var errNoClusterID = errors.New("the broker does not tell the cluster's id; without it two clusters with one group and topic cannot be told apart")

type groupError struct{ err error }

func (e *groupError) Error() string { return e.err.Error() }
func (e *groupError) Unwrap() error { return e.err }

func (s *Source) findGroup(ctx context.Context) error {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = 0 // a group's
	req.CoordinatorKey = s.set.Group
	req.CoordinatorKeys = []string{s.set.Group}
	resp, err := req.RequestWith(ctx, s.reader)
	if err != nil {
		return &groupError{err}
	}
	for _, c := range resp.Coordinators {
		if err := kerr.ErrorForCode(c.ErrorCode); err != nil {
			return &groupError{err}
		}
	}
	return nil
}

func (s *Source) patience(err error) time.Duration {
	var eof *kgo.ErrFirstReadEOF
	switch {
	case isCredentials(err), waits.IsTLS(err), isPermission(err),
		errors.Is(err, errNoClusterID), errors.Is(err, errNoTopicID),
		errors.Is(err, kerr.InvalidGroupID), errors.Is(err, kerr.InvalidTopicException):
		return 0
	case errors.As(err, &eof), closes(err), errors.Is(err, kerr.UnknownTopicOrPartition):
		return soonPatience
	}
	return s.set.StartTimeout
}

func isCredentials(err error) bool {
	return errors.Is(err, kerr.SaslAuthenticationFailed) ||
		errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState)
}

// closes reports whether the broker has closed a connection.
func closes(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

func isPermission(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.GroupAuthorizationFailed) ||
		errors.Is(err, kerr.ClusterAuthorizationFailed)
}

func (s *Source) unreached(err error, after time.Duration) error {
	at := s.seeds()
	var (
		topic *topicError
		group *groupError
	)
	switch {
	case isCredentials(err):
		return fmt.Errorf("kafkasource: the cluster at %s refuses the credentials: %w", at, err)
	case waits.IsTLS(err):
		return fmt.Errorf("kafkasource: TLS with the cluster at %s fails; is it the right port and certificate authority? %w", at, err)
	case errors.As(err, &topic) && errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("kafkasource: a topic does not exist, or this user may not describe it: %w", err)
	case errors.As(err, &topic) && errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafkasource: a topic does not exist, create it first: %w", err)
	case errors.As(err, &topic):
		return fmt.Errorf("kafkasource: %w", err)
	case errors.As(err, &group) && isPermission(err):
		return fmt.Errorf("kafkasource: group %q: this user may not use it: %w", s.set.Group, err)
	case errors.As(err, &group):
		return fmt.Errorf("kafkasource: group %q: no coordinator after %v: %w", s.set.Group, after, err)
	case errors.Is(err, errNoClusterID):
		return fmt.Errorf("kafkasource: cluster at %s: %w", at, err)
	}
	var eof *kgo.ErrFirstReadEOF // which gives the hint itself
	if !errors.As(err, &eof) && closes(err) {
		return fmt.Errorf("kafkasource: the cluster at %s closes the connection; are port, TLS and credentials right? %w", at, err)
	}
	return fmt.Errorf("kafkasource: no broker of the cluster at %s was reached within %v; does it run, and are address and port right? %w", at, after, err)
}
