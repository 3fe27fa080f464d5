package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// startGateway serves a gateway that does not answer one in silent requests.
func startGateway(t *testing.T, fenced bool, silent int) (url string, db *show.Database) {
	t.Helper()
	db, err := show.OpenDatabase(t.Context(), filepath.Join(t.TempDir(), "gateway.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	h, err := gateway(t.Context(), db, fenced, silent)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL, db
}

// ask asks a gateway to charge p under an epoch, 0 for none, and reads the
// answer.
func ask(ctx context.Context, t *testing.T, url string, p Payment, e epoch.Epoch) (status int, r Receipt, err error) {
	t.Helper()
	entry, err := p.charge(url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, entry.URL, strings.NewReader(string(entry.Body)))
	if err != nil {
		t.Fatal(err)
	}
	if e != 0 {
		if err := (httpfence.Call{Scope: entry.Scope, Epoch: e, Key: entry.IdempotencyKey}).SetHeaders(request.Header); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, r, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode == http.StatusCreated {
		err = json.Unmarshal(body, &r)
	}
	return answer.StatusCode, r, err
}

func countCharges(t *testing.T, db *show.Database) int {
	t.Helper()
	n, err := db.Count(t.Context(), `SELECT count(*) FROM charges`)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const patient = 20 * time.Second

func TestAFencedGatewayChargesOnceAndNotForAFormerOwner(t *testing.T) {
	url, db := startGateway(t, true, 0)
	first, second := sameAccount()
	_, r1, err := ask(t.Context(), t, url, testPayment(first), 5)
	if err != nil || r1.Charge == 0 {
		t.Fatal(r1, err)
	}
	if status, r2, err := ask(t.Context(), t, url, testPayment(first), 6); status != http.StatusCreated || r2 != r1 || err != nil {
		t.Errorf("asked again by the next owner: status %d, %+v, %v; want the first receipt, %+v", status, r2, err, r1)
	}
	if status, _, _ := ask(t.Context(), t, url, testPayment(second), 5); status != http.StatusPreconditionFailed {
		t.Errorf("asked by the former owner: status %d", status)
	}
	if status, _, _ := ask(t.Context(), t, url, testPayment(second), 0); status != http.StatusBadRequest {
		t.Errorf("asked without an epoch: status %d", status)
	}
	if n := countCharges(t, db); n != 1 {
		t.Errorf("%d charges, want 1", n)
	}
}

func TestAGatewayThatDoesNotAnswerHasChargedAndAnswersTheNextTime(t *testing.T) {
	for name, fenced := range map[string]bool{"fenced": true, "baseline": false} {
		t.Run(name, func(t *testing.T) {
			url, db := startGateway(t, fenced, 2)
			e := epoch.Epoch(0)
			if fenced {
				e = 1
			}
			if _, _, err := ask(t.Context(), t, url, testPayment(2), e); err != nil {
				t.Fatal(err)
			}
			ctx, leave := context.WithCancel(t.Context())
			answered := make(chan error, 1)
			go func() {
				_, _, err := ask(ctx, t, url, testPayment(3), e)
				answered <- err
			}()
			for limit := time.Now().Add(patient); countCharges(t, db) == 1 && time.Now().Before(limit); {
				runtime.Gosched()
			}
			leave()
			if err := <-answered; !errors.Is(err, context.Canceled) {
				t.Errorf("%v; want no answer before we left", err)
			}
			if n := countCharges(t, db); n != 2 {
				t.Errorf("%d charges, want 2", n)
			}
			if status, r, err := ask(t.Context(), t, url, testPayment(3), e); status != http.StatusCreated || r.Payment != 3 || err != nil {
				t.Errorf("the next time: status %d, %+v, %v", status, r, err)
			}
			if n, want := countCharges(t, db), map[bool]int{true: 2, false: 3}[fenced]; n != want {
				t.Errorf("%d charges, want %d", n, want)
			}
		})
	}
}

func TestAGatewayThatDoesNotAnswerRefusesAFormerOwnerAllTheSame(t *testing.T) {
	url, _ := startGateway(t, true, 2)
	first, second := sameAccount()
	if _, _, err := ask(t.Context(), t, url, testPayment(first), 6); err != nil {
		t.Fatal(err)
	}
	if status, _, err := ask(t.Context(), t, url, testPayment(second), 5); status != http.StatusPreconditionFailed {
		t.Errorf("the second request, which would have no answer: status %d, %v", status, err)
	}
}

func TestAGatewayRefusesWhatIsNoPayment(t *testing.T) {
	url, db := startGateway(t, false, 0)
	for _, body := range []string{"", "{", `{"payment":1}`, `{"payment":1,"account":"a","cents":-3}`, strings.Repeat(" ", 1<<11)} {
		answer, err := http.Post(url+chargesPath, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%.40q: status %d", body, answer.StatusCode)
		}
	}
	if n := countCharges(t, db); n != 0 {
		t.Errorf("%d charges, want none", n)
	}
}
