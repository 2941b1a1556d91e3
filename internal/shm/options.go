package shm

// HugeMode says whether a region may have, or must have, huge pages.
type HugeMode uint8

const (
	// HugeAuto takes 2 MiB pages from the system's pool for regions of 2 MiB and more if it has
	// them, else ordinary pages.
	HugeAuto HugeMode = iota
	// HugeOff takes ordinary pages.
	HugeOff
	// HugeRequire takes huge pages or fails with [ErrNoHugePages].
	HugeRequire
)

// Options select the memory of a region.
type Options struct {
	Huge HugeMode
	// Populate touches every page at once, in this process and in those that get the region by
	// Exchange, so that no operation pays for page faults later. Huge pages are always populated:
	// one that a cgroup refuses would be a SIGBUS later.
	Populate bool
}
