//go:build unix

package bench

import (
	"os/exec"
	"syscall"
)

// endTogether makes what a command starts end with it when its context does.
func endTogether(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
