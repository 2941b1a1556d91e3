package device

// Sizes of what kernels and hosts share of a queue pair: the NicState, all zero in the beginning, and for each entry
// of the send queue a mark, all zero too. Both lie in the GPU's memory.
const (
	NicStateBytes = 64
	NicMarkBytes  = 4
)

// NicMemory is memory as a network card names it: the NicMemory of nic.cuh, field by field.
type NicMemory struct {
	Address, Bytes uint64
	Key            uint32
	Atomic         uint32 // not 0: kernels may add to its words
}

// NicQueue is a queue pair as a kernel sees it: the NicQueue of nic.cuh. Package fabric/mlx5 has the formats of what
// the addresses lead to.
type NicQueue struct {
	Entries, Completions uint64
	Record               uint64 // the send queue's word
	Consumer             uint64
	Doorbell             uint64
	State, Ready         uint64
	Home                 uint64 // as the card names it: 8 bytes, to which it writes and from which nobody reads
	HomeKey              uint32
	Mask                 uint32 // entries - 1
	Log                  uint32 // of the number of completions
	Number, Peer         uint32
	_                    uint32
}

// NicPeer is several queue pairs to one peer: the NicPeer of nic.cuh.
type NicPeer struct {
	Queues   uint64 // of the NicQueues, in the GPU's memory
	Dst, Src NicMemory
	Count    uint32
	_        uint32
}

// NicFailed is set in Record.Seen where the cause is [CauseNIC]. Bits 8 to 15 are then the syndrome of package
// fabric/mlx5, bits 0 to 7 the vendor's; Record.Expected is the entry's number.
const NicFailed = 1 << 63
