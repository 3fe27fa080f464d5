//go:build !unix

package pgtest

import (
	"errors"
	"os"
	"os/exec"
)

// Without uids and signals, pgtest can only use a server given by EPOCHFENCE_TEST_POSTGRES.
var errNotHere = errors.New("pgtest: starting PostgreSQL is not supported on this system: give the URL of one in EPOCHFENCE_TEST_POSTGRES")

const (
	sigFast      = noSignal("fast")
	sigImmediate = noSignal("immediate")
)

type noSignal string

func (s noSignal) String() string { return string(s) }
func (s noSignal) Signal()        {}

type guard struct{}

func newGuard(string) (*guard, error) { return nil, errNotHere }

func (g *guard) close() error { return nil }

func (g *guard) start(*os.File, string, ...string) (*process, error) { return nil, errNotHere }

type process struct{ exited chan struct{} }

func (p *process) signal(os.Signal) error { return errNotHere }

func unprivileged(cmd *exec.Cmd) *exec.Cmd { return cmd }

func serverUser() (uid, gid uint32, ok bool) { return 0, 0, false }

func serverDir(string, string) (string, error) { return "", errNotHere }

func ownByServer(string) error { return errNotHere }

func lockFile(string) (func(), error) { return nil, errNotHere }

func ownedByUs(string) bool { return false }
