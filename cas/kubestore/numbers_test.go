package kubestore_test

import (
	"strconv"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

// Each write is a change of the leader, as client-go makes it: leaseTransitions is one more.
func TestRealWhichNumbersGrow(t *testing.T) {
	c := start(t)
	leases := c.client(t, c.api.Address, admin).CoordinationV1().Leases(c.namespace(t))
	var last *coordinationv1.Lease
	tokentest.Show(t, tokentest.Server{
		Name: "Kubernetes",
		Write: func(t testing.TB) {
			seen, err := leases.Get(t.Context(), "lock", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				last, err = leases.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Name: "lock"}, Spec: coordinationv1.LeaseSpec{LeaseTransitions: new(int32)},
				}, metav1.CreateOptions{})
			} else if err == nil {
				*seen.Spec.LeaseTransitions++
				last, err = leases.Update(t.Context(), seen, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if err := leases.Delete(t.Context(), "lock", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		Backup: c.backup,
		Numbers: map[string]func(t testing.TB) int64{
			"resourceVersion": func(t testing.TB) int64 {
				n, err := strconv.ParseInt(last.ResourceVersion, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			},
			"spec.leaseTransitions": func(testing.TB) int64 { return int64(*last.Spec.LeaseTransitions) },
		},
	})
}
