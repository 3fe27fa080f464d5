package kubestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/epochfence/epochfence/cas"
)

// This file lists and watches the Leases of the store. It decides when a watch is begun again.

const (
	// page is the number of items that a list reads at a time.
	page = 200

	// answerLimit bounds the wait for a page of a list, and for the start of a watch.
	answerLimit = 10 * time.Second

	// shortest is how long a watch must have lasted to be begun again when the server ends it. API
	// servers end watches after half an hour or more (--min-request-timeout).
	shortest = time.Second
)

// List implements [cas.Store]. It returns the items as they were at one moment. The server sends all
// items of the store, whatever the prefix.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		_, _, err := s.list(ctx, prefix, func(item cas.Item) bool { return yield(item, nil) })
		if err != nil {
			yield(cas.Item{}, failed("list", prefix, ended(ctx, err)))
		}
	}
}

// list yields live items, and returns the resourceVersion at which they were so. left reports that
// yield has returned false.
func (s *Store) list(ctx context.Context, prefix string, yield func(cas.Item) bool) (at string, left bool, err error) {
	o := metav1.ListOptions{LabelSelector: storeLabel + "=" + s.name + "," + stateLabel + "=" + live, Limit: page}
	for {
		leases, err := s.page(ctx, o)
		if err != nil {
			return "", false, err
		}
		for i := range leases.Items {
			item, err := s.item(&leases.Items[i])
			if err == nil && strings.HasPrefix(item.Key, prefix) && !yield(item) { // errors are of strangers
				return "", true, nil
			}
		}
		if o.Continue = leases.Continue; o.Continue == "" {
			return leases.ResourceVersion, false, nil
		}
	}
}

func (s *Store) page(ctx context.Context, o metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var leases coordinationv1.LeaseList
	err := s.client.Get().Namespace(s.namespace).Resource("leases").VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(&leases)
	return &leases, err
}

// Watch implements [cas.Watcher]. The server sends the changes of all items of the store, whatever the
// prefix.
func (s *Store) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		err := s.watch(ctx, prefix, func(item cas.Item) bool {
			item.Note = nil
			return yield(item, nil)
		})
		if err != nil {
			yield(cas.Item{}, failed("watch", prefix, ended(ctx, err)))
		}
	}
}

// watch returns nil if yield has returned false. When the server ends the watch, it lists again: a
// watch that continued at a resourceVersion would miss what a restored etcd writes up to there.
func (s *Store) watch(ctx context.Context, prefix string, yield func(cas.Item) bool) error {
	var shown map[string]bool // the keys of the items that are live, as yielded
	for {
		first, listed := shown == nil, map[string]bool{}
		at, left, err := s.list(ctx, prefix, func(item cas.Item) bool {
			listed[item.Key] = true
			return yield(item)
		})
		if left || err != nil {
			return err
		}
		number, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return fmt.Errorf("the list's resourceVersion is no number: %w", err)
		}
		for key := range shown {
			if !listed[key] && !yield(cas.Item{Key: key, Number: number}) {
				return nil
			}
		}
		if shown = listed; first && !yield(cas.Item{}) {
			return nil
		}
		began := time.Now()
		left, err = s.follow(ctx, at, func(item cas.Item) bool {
			if !strings.HasPrefix(item.Key, prefix) {
				return true
			}
			if delete(shown, item.Key); item.Live {
				shown[item.Key] = true
			}
			return yield(item)
		})
		if left || err != nil {
			return err
		}
		if time.Since(began) < shortest {
			return errors.New("the watch has ended at once")
		}
	}
}

// follow yields what changes after a resourceVersion, until the server ends the watch. left reports
// that yield has returned false.
func (s *Store) follow(ctx context.Context, at string, yield func(cas.Item) bool) (left bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := time.AfterFunc(answerLimit, cancel)
	o := metav1.ListOptions{LabelSelector: storeLabel + "=" + s.name, Watch: true, ResourceVersion: at}
	w, err := s.client.Get().Namespace(s.namespace).Resource("leases").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Watch(ctx)
	if err != nil {
		return false, err
	}
	defer w.Stop()
	if !limit.Stop() {
		return false, fmt.Errorf("start a watch: %w", context.DeadlineExceeded)
	}
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return false, ctx.Err()
			}
			lease, isLease := e.Object.(*coordinationv1.Lease)
			if !isLease {
				return false, apierrors.FromObject(e.Object)
			}
			if item, ok := s.watched(e.Type, lease); ok && !yield(item) {
				return true, nil
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// watched returns the item of an event, if it is one's. A deletion has no version: the Lease that has
// it is about to go.
func (s *Store) watched(event watch.EventType, lease *coordinationv1.Lease) (item cas.Item, ok bool) {
	item, err := s.item(lease)
	switch {
	case err != nil, event == watch.Deleted && !item.Live: // a stranger's; or watched when it was patched
		return cas.Item{}, false
	case event == watch.Deleted, !item.Live:
		return cas.Item{Key: item.Key, Number: item.Number}, true
	}
	return item, true
}
