//go:build !unix

package bench

import "os/exec"

// endTogether would end a command's children with it; without process groups only the command ends.
func endTogether(*exec.Cmd) {}
