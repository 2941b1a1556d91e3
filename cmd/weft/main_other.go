//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr,
		"weft: needs Linux, for its shared memory and its processes; run it in a Linux machine or container.")
	os.Exit(1)
}
