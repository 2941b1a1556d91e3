//go:build unix

package bench

import (
	"os/exec"
	"syscall"
)

// endTogether ends a command's children with it when its context ends.
func endTogether(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
