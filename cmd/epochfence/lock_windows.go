package main

import (
	"context"
	"os"
	"os/exec"
)

// This file has no signals: Windows has none. The console passes Ctrl-C to the command itself.

type child struct {
	cmd     *exec.Cmd
	signals chan os.Signal
}

func start(_ context.Context, cmd *exec.Cmd) (*child, error) { return &child{cmd: cmd}, cmd.Start() }

func (*child) stop()          {}
func (*child) pass(os.Signal) {}
func (c *child) terminate()   { c.kill() }
func (c *child) kill()        { _ = c.cmd.Process.Kill() }

func codeOf(p *os.ProcessState) int { return p.ExitCode() }
