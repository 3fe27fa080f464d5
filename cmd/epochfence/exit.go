package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitTrouble = 3
	exitChanged = 4
	exitDoubt   = 5
)

const exitCodes = `Exit codes:
  0  it is done, or shown; check, doctor and drill have found nothing; moveover
     says yes
  1  another error: no connection, a missing privilege, no such partition
  2  usage: a flag or an argument that makes no sense
  3  check, doctor or drill has found trouble; doctor cannot reach a server or
     lacks a privilege; check cannot reach a broker or finds no such
     partition; moveover says no
  4  refused: what you saw has changed; look again, and decide again
  5  it is not known whether it was done; the message says how to find out
Of several acts that ended differently it is the highest.`

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

var errTrouble = errors.New("trouble was found")

func exitCode(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && !errors.Is(err, epoch.ErrInDoubt) {
		codes := []int{exitOK}
		for _, e := range joined.Unwrap() {
			codes = append(codes, exitCode(e))
		}
		return slices.Max(codes)
	}
	changed := func(e error) bool { return errors.Is(err, e) }
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, epoch.ErrInDoubt):
		return exitDoubt
	case slices.ContainsFunc([]error{operate.ErrChanged, epoch.ErrStale, epoch.ErrMoved, operate.ErrDeadLetterChanged}, changed):
		return exitChanged
	case errors.Is(err, errTrouble):
		return exitTrouble
	case errors.As(err, new(usageError)) || errors.Is(err, operate.ErrAct):
		return exitUsage
	default:
		return exitError
	}
}
