package statusz

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// An action takes two requests. GET act previews the action and changes nothing. The form in that
// preview is a POST, which acts only if the state is still the one that the preview showed.

const maxForm = 1 << 20

type doing struct {
	Title, At, Back string
	Kind, Name      string
	Refused         string // why the action would be refused
	Changes         []change
	Says            []string
	By, Reason      string
	AskReason       bool
	Fields          []field

	do func(ctx context.Context) error
}

type change struct{ Name, Now, Then string }

type field struct{ Name, Value string }

var errForm = errors.New("the form cannot be carried out")

func (h *Handler) preview(w http.ResponseWriter, r *http.Request) {
	by := h.mayAct(r)
	if by == "" {
		h.refuse(w, http.StatusForbidden, "Not allowed", "This request comes from nobody who may act.")
		return
	}
	d, err := h.prepare(r.Context(), r.URL.Query(), by)
	if err != nil {
		h.fail(w, err)
		return
	}
	h.write(w, http.StatusOK, "preview.html", d)
}

func (h *Handler) act(w http.ResponseWriter, r *http.Request) {
	by := h.mayAct(r)
	if by == "" {
		h.refuse(w, http.StatusForbidden, "Not allowed", "This request comes from nobody who may act.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		h.refuse(w, http.StatusBadRequest, "Not understood", err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readTimeout) // a browser that goes away has still asked for the action
	defer cancel()
	d, err := h.prepare(ctx, r.PostForm, by)
	if err != nil {
		h.fail(w, err)
		return
	}
	err = d.do(ctx)
	h.Logger.Info("statusz: act", "kind", d.Kind, "on", d.Name, "by", by, "reason", r.PostForm.Get("reason"), "err", err)
	if err != nil {
		h.fail(w, err)
		return
	}
	to := "./"
	if r.PostForm.Get("about") == "partition" {
		to = d.Back + "&done=" + url.QueryEscape(d.Kind)
	}
	w.Header().Set("Location", to) // relative: a handler does not know where it is mounted
	w.WriteHeader(http.StatusSeeOther)
}

func (h *Handler) prepare(ctx context.Context, form url.Values, by string) (*doing, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	d := &doing{Title: h.Title, At: time.Now().UTC().Format(time.DateTime) + " UTC", Back: "./", By: by, Kind: form.Get("kind"), Reason: form.Get("reason")}
	var err error
	switch about := form.Get("about"); {
	case about == "partition" && h.Operator != nil:
		err = h.prepareAct(ctx, d, form)
	case about == "deadletter" && h.Operator != nil:
		err = h.prepareDeadLetter(ctx, d, form)
	case about == "outbox" && h.Operator != nil:
		err = h.prepareOutbox(ctx, d, form)
	default:
		err = fmt.Errorf("%w: about %q", errForm, about)
	}
	return d, err
}

func (h *Handler) prepareAct(ctx context.Context, d *doing, form url.Values) error {
	p, err := partitionOf(form)
	if err != nil {
		return err
	}
	d.Name, d.Back = visible(p.String()), linkTo(p)
	now, err := h.Operator.Partition(ctx, p)
	if err != nil {
		return err
	}
	f, request := now.Fence, operate.Request{Kind: operate.ActKind(d.Kind), By: d.By, Reason: d.Reason, Log: form.Get("log"), Source: form.Get("source")}
	to := strings.TrimSpace(form.Get("to"))
	if to != "" && request.Kind != operate.ActRun {
		t, err := target(f, to)
		if err != nil {
			return err
		}
		request.To = &t
	}
	var claim epoch.ClaimID
	var planner operate.Planner
	if h.Logs != nil {
		planner.Extent = h.extent
	}
	if form.Has("claim") { // from the preview, which has compared the position with the log
		if claim, err = seen(&f, form); err != nil {
			return err
		}
		planner.Extent = nil
		if request.To != nil && form.Get("beginning") == "true" {
			at := request.To.Offset
			request.To.Word = "start"
			planner.Extent = func(context.Context, epoch.Fence) (operate.Extent, error) {
				return operate.Extent{Begin: at, End: at}, nil
			}
		}
	}
	plan, err := planner.Plan(ctx, f, request)
	if err != nil {
		return err
	}
	a := &plan.Act
	if claim != (epoch.ClaimID{}) {
		a.Claim = claim
	}
	if a.To != nil && request.To != nil {
		to = strconv.FormatInt(int64(a.To.Offset), 10) // the POST does what the preview shows
	}
	after, err := a.Apply(now.Fence)
	switch {
	case plan.Nothing != "":
		d.Refused = "Nothing to do: " + show(plan.Nothing)
	case err != nil:
		d.Refused = show(err.Error())
	default:
		d.Changes = changes(now.Fence, after)
		d.Says = append(d.Says, strings.ToUpper(plan.Effect[:1])+show(plan.Effect[1:])+".")
	}
	d.Fields = []field{
		{"about", "partition"}, {"group", p.Group}, {"topic", p.Topic}, {"number", strconv.Itoa(int(p.Number))},
		{"kind", d.Kind}, {"reason", d.Reason}, {"to", to}, {"beginning", strconv.FormatBool(a.Beginning)}, {"log", request.Log}, {"source", request.Source},
		{"claim", a.Claim.String()}, {"seen-epoch", strconv.FormatInt(int64(a.Seen.Epoch), 10)},
		{"seen-claim", a.Seen.Claim.String()}, {"seen-next", strconv.FormatInt(int64(a.Seen.Next), 10)},
	}
	d.do = func(ctx context.Context) error {
		_, err := plan.CarryOut(ctx, h.Operator)
		return err
	}
	return nil
}

// target reads where a form wants to continue. A job's positions are times.
func target(f epoch.Fence, to string) (operate.Target, error) {
	if at, err := time.Parse(time.RFC3339, to); err == nil && isJob(f) {
		return operate.Target{At: at}, nil
	}
	return operate.ParseTarget(to, func(string) (time.Time, error) {
		return time.Time{}, fmt.Errorf("%w: %q; a job takes a time such as 2026-12-31T02:30:00Z, and a log an offset", errForm, to)
	})
}

// extent returns where a log begins and ends. It does not know which log it is.
func (h *Handler) extent(ctx context.Context, f epoch.Fence) (operate.Extent, error) {
	logs, err := h.Logs(ctx, []epoch.Fence{f})
	log, known := logs[f.Partition]
	switch {
	case err != nil:
		return operate.Extent{}, fmt.Errorf("ask where the log of %s begins and ends: %w", f.Partition, err)
	case !known:
		return operate.Extent{}, fmt.Errorf("%w: it is not known where the log of %s begins and ends; say an offset", errForm, f.Partition)
	}
	return log, nil
}

// seen sets f to the state that the preview showed, and returns the claim of the act.
func seen(f *epoch.Fence, form url.Values) (claim epoch.ClaimID, err error) {
	numbers := [2]int64{}
	for i, name := range []string{"seen-epoch", "seen-next"} {
		if numbers[i], err = strconv.ParseInt(form.Get(name), 10, 64); err != nil {
			return claim, fmt.Errorf("%w: %s", errForm, name)
		}
	}
	f.Epoch, f.Next = epoch.Epoch(numbers[0]), epoch.Offset(numbers[1])
	if f.Claim, err = epoch.ParseClaimID(form.Get("seen-claim")); err != nil {
		return claim, fmt.Errorf("%w: seen-claim: %w", errForm, err)
	}
	if claim, err = epoch.ParseClaimID(form.Get("claim")); err != nil {
		return claim, fmt.Errorf("%w: claim: %w", errForm, err)
	}
	return claim, nil
}

func changes(now, then epoch.Fence) (cs []change) {
	mode := func(f epoch.Fence) string {
		if f.Pause.Mode == epoch.Running {
			return "takes claims"
		}
		return string(f.Pause.Mode)
	}
	for _, c := range []change{
		{"Takes claims", mode(now), mode(then)},
		{"Next offset", position(now, now.Next), position(then, then.Next)},
		{"Epoch", thousands(int64(now.Epoch)), thousands(int64(then.Epoch))},
		{"Owner", visible(now.Owner), visible(then.Owner)},
		{"Log", visible(now.Log), visible(then.Log)},
		{"Lease issuer", visible(now.Source), visible(then.Source)},
	} {
		if c.Now != c.Then {
			cs = append(cs, c)
		}
	}
	return cs
}

func (h *Handler) prepareDeadLetter(ctx context.Context, d *doing, form url.Values) error {
	id, err := idOf(form)
	if err != nil {
		return err
	}
	now, err := h.Operator.DeadLetter(ctx, id)
	if err != nil {
		return err
	}
	d.Name, d.AskReason = fmt.Sprintf("dead letter %d of %s", id, visible(now.Message.Partition.String())), true
	a := operate.DeadLetterAct{Kind: operate.DeadLetterKind(d.Kind), Seen: now, By: d.By, Reason: d.Reason}
	if form.Has("seen-request") { // from the preview
		if a.Seen.Request, err = strconv.ParseInt(form.Get("seen-request"), 10, 64); err != nil {
			return fmt.Errorf("%w: seen-request", errForm)
		}
		a.Seen.Deferred, _ = strconv.Atoi(form.Get("seen-deferred"))
		a.Seen.Requested = form.Get("seen-requested") == "true"
	}
	if _, err := a.Done(now); err != nil {
		d.Refused = show(err.Error())
	}
	of, err := h.Operator.Partition(ctx, now.Message.Partition)
	if err != nil {
		return err
	}
	d.Says = append(d.Says, "Dead letter of "+jobsOf(of).message(now.Message)+", because: "+show(now.Error))
	switch a.Kind {
	case operate.Replay:
		d.Says = append(d.Says, "The owner of the partition calls the handler with it within seconds, in the transaction that deletes it. If that fails, it stays a dead letter.")
	case operate.Withdraw:
		d.Says = append(d.Says, "The request for its replay is withdrawn. What was deferred is a dead letter then.")
	case operate.Discard:
		d.Says = append(d.Says, "It is deleted, and its message is not applied.")
	default:
		return fmt.Errorf("%w: kind %q", errForm, d.Kind)
	}
	d.Fields = []field{
		{"about", "deadletter"}, {"id", strconv.FormatInt(id, 10)}, {"kind", d.Kind},
		{"seen-deferred", strconv.Itoa(a.Seen.Deferred)}, {"seen-request", strconv.FormatInt(a.Seen.Request, 10)}, {"seen-requested", strconv.FormatBool(a.Seen.Requested)},
	}
	d.do = func(ctx context.Context) error {
		_, err := h.Operator.DoDeadLetter(ctx, a)
		return err
	}
	return nil
}

func (h *Handler) prepareOutbox(ctx context.Context, d *doing, form url.Values) error {
	id, err := idOf(form)
	if err != nil {
		return err
	}
	now, err := h.Operator.OutboxEntry(ctx, id)
	if err != nil {
		return err
	}
	d.Name, d.AskReason = fmt.Sprintf("entry %d of the outbox", id), true
	a := operate.OutboxAct{Kind: operate.OutboxKind(d.Kind), Seen: now, By: d.By, Reason: d.Reason}
	// A key may be long, or not be text that a browser sends back unchanged.
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(now.IdempotencyKey)))
	if form.Has("seen-key") && form.Get("seen-key") != key {
		return operate.ErrNoOutboxEntry
	}
	d.Says = append(d.Says, "Of "+visible(now.Partition.String())+", with the idempotency key "+show(now.IdempotencyKey)+".")
	switch a.Kind {
	case operate.OutboxRetry:
		d.Says = append(d.Says, "An entry that waits for its next attempt is sent within seconds. An entry that waits for another entry of its key is not.")
	case operate.OutboxDiscard:
		d.Says = append(d.Says, "It is deleted and not sent. A running attempt may still arrive.")
	default:
		return fmt.Errorf("%w: kind %q", errForm, d.Kind)
	}
	d.Fields = []field{{"about", "outbox"}, {"id", strconv.FormatInt(id, 10)}, {"kind", d.Kind}, {"seen-key", key}}
	d.do = func(ctx context.Context) error { return h.Operator.DoOutbox(ctx, a) }
	return nil
}

func idOf(form url.Values) (int64, error) {
	id, err := strconv.ParseInt(form.Get("id"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: id", errForm)
	}
	return id, nil
}

func partitionOf(form url.Values) (epoch.Partition, error) {
	n, err := strconv.ParseInt(form.Get("number"), 10, 32)
	if err != nil {
		return epoch.Partition{}, fmt.Errorf("%w: number of the partition", errForm)
	}
	return epoch.Partition{Group: form.Get("group"), Topic: form.Get("topic"), Number: int32(n)}, nil
}

func linkTo(p epoch.Partition) string {
	return "partition?" + url.Values{"group": {p.Group}, "topic": {p.Topic}, "number": {strconv.Itoa(int(p.Number))}}.Encode()
}

func (h *Handler) fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrMoved), errors.Is(err, operate.ErrDeadLetterChanged):
		h.refuse(w, http.StatusConflict, "It has changed", "Nothing was done, because the state has changed since it was read. Read it again. "+err.Error())
	case errors.Is(err, operate.ErrChanged):
		h.refuse(w, http.StatusConflict, "It has changed", "The position was not set. The claim of its owner was taken away, and the owner claims again. "+err.Error())
	case gone(err):
		h.refuse(w, http.StatusNotFound, "Not found", err.Error())
	case errors.Is(err, operate.ErrAtWork):
		h.refuse(w, http.StatusConflict, "At work", err.Error())
	case errors.Is(err, operate.ErrNothingToDo):
		h.refuse(w, http.StatusConflict, "Nothing to do", err.Error())
	case errors.Is(err, errForm), errors.Is(err, operate.ErrAct):
		h.refuse(w, http.StatusBadRequest, "Not understood", err.Error())
	case errors.Is(err, epoch.ErrInDoubt):
		h.refuse(w, http.StatusBadGateway, "Not known whether it was done", err.Error())
	default:
		h.refuse(w, http.StatusBadGateway, "Failed", err.Error())
	}
}

func (h *Handler) refuse(w http.ResponseWriter, status int, head, text string) {
	h.write(w, status, "message.html", struct{ Title, Head, Class, Text, Back string }{h.Title, head, "halted", show(text), "./"})
}
