//go:build !unix

package main

import "os/exec"

// ownGroup does nothing where there are no process groups: cancelling kills the command alone.
func ownGroup(*exec.Cmd) {}
