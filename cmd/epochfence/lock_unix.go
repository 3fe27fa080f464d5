//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
)

// This file decides who gets which signal of a command that runs under a lock.
//
// On a terminal the command stays in our process group, so that it may read from the terminal, which
// sends SIGINT and SIGQUIT to the whole group: these are not passed on. Elsewhere the command leads a
// group of its own, and everything in it gets each signal.

type child struct {
	cmd        *exec.Cmd
	signals    chan os.Signal
	onTerminal bool
}

// start starts cmd unless ctx has ended: signals from then on are passed on, and those before have ended ctx.
func start(ctx context.Context, cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, signals: make(chan os.Signal, 8)}
	c.onTerminal = slices.ContainsFunc([]any{cmd.Stdin, cmd.Stdout, cmd.Stderr}, isTerminal)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.onTerminal}
	followUs(cmd.SysProcAttr)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		if !signal.Ignored(s) { // as by nohup, for the command too
			signal.Notify(c.signals, s)
		}
	}
	err := ctx.Err()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *child) stop() { signal.Stop(c.signals) }

func (c *child) pass(s os.Signal) {
	if c.onTerminal && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
		return
	}
	c.send(s.(syscall.Signal)) //nolint:forcetypeassert // that of package os is this one on unix
}

// terminate also wakes a command that was stopped, or it would not get the signal.
func (c *child) terminate() {
	c.send(syscall.SIGTERM)
	c.send(syscall.SIGCONT)
}

func (c *child) kill() { c.send(syscall.SIGKILL) }

func (c *child) send(s syscall.Signal) {
	if c.onTerminal {
		_ = c.cmd.Process.Signal(s)
		return
	}
	_ = syscall.Kill(-c.cmd.Process.Pid, s)
}

func codeOf(p *os.ProcessState) int {
	if w, is := p.Sys().(syscall.WaitStatus); is && w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return p.ExitCode()
}
