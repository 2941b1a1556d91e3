package fabrictest

// Class is what a network promises.
type Class struct {
	Name      string
	Ordered   bool // writes to a peer land in the order in which they were posted
	Words     bool // an aligned word of 8 bytes lands whole
	Delivered bool // a completion says that the bytes have landed
	Manual    bool // writes land only while their target polls
	Sleeps    bool // an endpoint can be slept on
	PicksKeys bool // the network picks the keys of regions
	Virtual   bool // peers give addresses, not offsets
	Unchecked bool // keys are not looked at, as no domain accepts
	Holds     bool // a write that has begun to land lands whole, whatever becomes of its key, while the connection lasts
	Prompt    bool // writes land whole when they are posted, as no network does: to measure what is built on it
	Devices   bool // regions may be memory of emulated GPUs, which is the host's
	DMABufs   bool // and given as dma-bufs
	KeyBytes  int
	DataBytes int
	MaxWrite  int
	Depth     int
}

// EFA is like an Elastic Fabric Adapter: no order, 4 bytes of data.
func EFA() Class {
	return Class{
		Name: "efa", Words: true, Manual: true, Sleeps: false, PicksKeys: true, Virtual: true,
		KeyBytes: 4, DataBytes: 4, MaxWrite: 1 << 30, Depth: 64,
	}
}

// Verbs is like a reliable connection of InfiniBand: ordered, words whole. Writes are short, so that
// long ones are divided.
func Verbs() Class {
	return Class{
		Name: "verbs", Ordered: true, Words: true, PicksKeys: true, Virtual: true,
		KeyBytes: 4, DataBytes: 4, MaxWrite: 1 << 12, Depth: 32,
	}
}

// TCP is like libfabric's provider of that name: ordered, moving by itself, and a byte stream.
func TCP() Class {
	return Class{
		Name: "tcp", Ordered: true, Delivered: true, Sleeps: true, Holds: true,
		KeyBytes: 8, DataBytes: 8, MaxWrite: 1 << 30, Depth: 256,
	}
}

// RXM is like tcp;ofi_rxm: as TCP, but targets must poll.
func RXM() Class {
	c := TCP()
	c.Name, c.Manual, c.Depth = "tcp;ofi_rxm", true, 1024
	return c
}

// Classes are all of them.
func Classes() []Class { return []Class{EFA(), Verbs(), TCP(), RXM()} }
