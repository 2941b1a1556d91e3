//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup makes cancelling cmd kill its whole process group.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
