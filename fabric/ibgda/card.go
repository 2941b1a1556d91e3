package ibgda

import (
	"errors"
	"fmt"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
)

// Card is a network card, as kernels of one GPU drive it. Its methods, and those of what it makes, are one goroutine's
// at a time.
type Card interface {
	// Name is for logs.
	Name() string
	// Address is where peers' cards find this one.
	Address() Address
	// RegisterHost lets entries name pinned memory of the host, and peers write to it.
	RegisterHost(m *cuda.HostMemory) (*Region, error)
	// RegisterGPU is RegisterHost of memory of the GPU.
	RegisterGPU(p cuda.Pointer, size int) (*Region, error)
	// NewQueue makes a queue pair with room for at least so many entries.
	NewQueue(entries int) (Queue, error)
	// Close closes the card, whose queue pairs and regions are closed. The card made of Go then tells of mistakes in
	// what kernels wrote.
	Close() error
}

// Queue is a queue pair.
type Queue interface {
	// Number is what the peer's Connect takes.
	Number() uint32
	// Kernel is the queue pair as kernels see it, but for what the caller has: State, Ready, Home and Peer.
	Kernel() device.NicQueue
	// Connect connects it to the queue pair of that number of a peer's card. Kernels may write entries when the peer
	// has connected its own, too.
	Connect(peer Address, number uint32) error
	// Close ends it. No kernel that has it runs.
	Close() error
}

// Region is registered memory.
type Region struct {
	Address, Bytes     uint64 // as entries name it
	LocalKey, PeersKey uint32
	release            func() error
}

// Near is the region for entries of this rank's.
func (r *Region) Near() device.NicMemory {
	return device.NicMemory{Address: r.Address, Bytes: r.Bytes, Key: r.LocalKey}
}

// Close takes the keys back: no entry that names them is carried out any more.
func (r *Region) Close() error { return r.release() }

// AddressBytes is the size of an encoded Address.
const AddressBytes = 24

// network is what a port is on.
type network uint8

// Networks. Those of RoCE differ in the protocol of the addresses.
const (
	process    network = iota + 1 // none: ranks of one process
	infiniBand                    // by LIDs, and by GIDs between subnets
	roce4                         // RoCE v2 over IPv4
	roce6
)

func (n network) String() string {
	switch n {
	case process:
		return "a card made of Go"
	case infiniBand:
		return "InfiniBand"
	case roce4:
		return "RoCE over IPv4"
	case roce6:
		return "RoCE over IPv6"
	}
	return fmt.Sprintf("network %d", uint8(n))
}

// Address is where a card is found.
type Address struct {
	network network
	mtu     uint8 // a code
	lid     uint16
	gid     [16]byte // or the name of a process
}

// Append appends the encoded address.
func (a Address) Append(b []byte) []byte {
	b = append(b, byte(a.network), a.mtu, byte(a.lid), byte(a.lid>>8), 0, 0, 0, 0)
	return append(b, a.gid[:]...)
}

var errAddress = errors.New("not an address of a card")

// DecodeAddress takes an address off the front of what a peer has sent.
func DecodeAddress(b []byte) (a Address, rest []byte, err error) {
	if len(b) < AddressBytes || b[0] < byte(process) || b[0] > byte(roce6) || b[1] > 5 || b[4]|b[5]|b[6]|b[7] != 0 {
		return a, nil, errAddress
	}
	a = Address{network: network(b[0]), mtu: b[1], lid: uint16(b[2]) | uint16(b[3])<<8}
	copy(a.gid[:], b[8:])
	return a, b[AddressBytes:], nil
}

// reach refuses an address that lies on another network.
func (a Address) reach(peer Address) error {
	if a.network == peer.network {
		return nil
	}
	return fmt.Errorf("its card is on %s, and this rank's on %s: name cards of one network in %s", peer.network, a.network,
		NICVariable)
}
