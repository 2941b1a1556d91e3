//go:build !unix

package kernel

import "io/fs"

// trusted asks nothing where files have no owner and mode of Unix's kind: a user's cache directory
// is only the user's by its place.
func trusted(fs.FileInfo) error { return nil }
