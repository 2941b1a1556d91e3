package ibgda

import (
	"path/filepath"
	"strings"
)

// place is where the kernel's tree of devices has one, or "".
func place(link string) string {
	at, err := filepath.EvalSymlinks(link)
	if err != nil {
		return ""
	}
	return at
}

// apart is how far two devices are from each other in the tree: over how many folders that they do not share a path
// leads. What is not known is far.
func apart(a, b string) int {
	const far = 1 << 10
	if a == "" || b == "" {
		return far
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	shared := 0
	for shared < min(len(x), len(y)) && x[shared] == y[shared] {
		shared++
	}
	return len(x) + len(y) - 2*shared
}
