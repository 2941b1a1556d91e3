//go:build !unix

package ep_test

// playPart is nothing where processes cannot be killed and stopped.
func playPart() bool { return false }
