package weft

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version is the number of this release, such as "0.1.0". The command line, the C library, the
// Python packages and the archives of a release all take theirs from the file VERSION.
func Version() string { return strings.TrimSpace(version) }
