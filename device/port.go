package device

// Sizes of what package port lays out for kernels: the PortLine of a channel and the PortHead of a ring.
const (
	PortLineBytes = 64
	PortHeadBytes = 16
)

// What a trigger asks for: the PORT_PUT and so on of port.cuh.
const (
	PortPut    = 1 << 0
	PortSignal = 1 << 1
	PortAdd    = 1 << 2
	PortFlush  = 1 << 3
)

// PortChannel is a port channel as a kernel sees it: the PortChannel of port.cuh, field by field. Package
// port fills it.
type PortChannel struct {
	Slots, Tail        uint64
	Head, Line, Taken  uint64
	DstBytes, SrcBytes uint64
	Mask, Lap          uint32
	Channel, Peer      uint32
	Dst, Src           uint32
	Words              uint32
	_                  uint32
}
