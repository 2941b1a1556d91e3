// Package provider is the seam below package fabric: one endpoint of a network, as libfabric or a
// twin made of Go provides it.
//
// An [Endpoint] is passive: it moves when it is called. One goroutine at a time may call it, except
// for Sleep. Package fabric holds a lock around every call, and adds all that needs a rule: peers,
// numbers, deadlines, failures.
package provider

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// ErrAgain: the endpoint is full, or has begun to connect. The caller polls and posts again.
var ErrAgain = errors.New("try again")

// Attributes are what an endpoint promises. fabric.Capabilities has the same fields, with their
// documentation.
type Attributes struct {
	Provider  string
	Library   string
	Path      string
	Ordered   bool
	Words     bool
	Delivered bool
	Manual    bool
	Sleeps    bool
	PicksKeys bool
	KeyBytes  int
	DataBytes int
	MaxWrite  int
	Depth     int
	Devices   bool
	DMABufs   bool
}

// DeviceMemory is memory of a GPU that is to be registered.
type DeviceMemory struct {
	Address uintptr // in the address space that the host and its GPUs share
	Bytes   int
	GPU     int // its number for CUDA
	// DMABuf is a descriptor of a dma-buf that has the memory from Offset on, or negative: the provider finds the memory
	// by its address.
	DMABuf int
	Offset int
}

// A DeviceEndpoint registers memory of GPUs, if its attributes say so.
type DeviceEndpoint interface {
	Endpoint
	// RegisterDevice is Register of memory of a GPU. The descriptor may be closed when it has returned.
	RegisterDevice(memory DeviceMemory, key uint64) (Memory, error)
}

// Address is a peer's place in an endpoint's table of addresses.
type Address uint64

// An Endpoint writes into the registered memory of its peers.
type Endpoint interface {
	// Attributes are the same at every call.
	Attributes() Attributes
	// Name is the address by which peers insert this endpoint.
	Name() ([]byte, error)
	// Insert makes a peer's endpoint reachable. It does not connect: the first Write does.
	Insert(name []byte) (Address, error)
	// Remove takes a peer out of the table and ends the connection to it.
	Remove(Address) error
	// Register lets peers write into memory, by a key: the one given, unless the provider picks keys.
	// The memory stays pinned by the caller until the Memory is closed.
	Register(memory []byte, key uint64) (Memory, error)
	// Write posts a write, or returns ErrAgain, or the reason why it never will.
	Write(*Post) error
	// Poll moves the endpoint, and reports what has completed.
	Poll(into []Completion) (int, error)
	// Arm says whether Sleep may be called now: nothing is ready to be polled.
	Arm() bool
	// Sleep returns when something may be ready, or after so long. It may be called beside other
	// methods, but not beside Close.
	Sleep(time.Duration)
	// Close ends everything that the endpoint has posted, and unregisters its memory.
	Close() error
}

// Memory is a registered region.
type Memory interface {
	// Base is the address of its first byte as peers give it.
	Base() uint64
	// Key is what peers must show.
	Key() uint64
	// Close takes the key back: writes that begin afterwards fail.
	Close() error
}

// A Post is one write. The endpoint keeps nothing of it but what From points at.
type Post struct {
	Token  uint32         // says in the completion which write it is; less than Tokens
	From   unsafe.Pointer // the bytes, unchanged until the completion
	Local  Memory         // holds From
	Bytes  int
	To     Address
	Remote uint64 // in the peer's terms
	Key    uint64
	Data   uint64 // reaches the peer's Poll after the bytes have landed, if HasData; Attributes.DataBytes of it
	// HasData says that the peer gets a Completion, too.
	HasData bool
	// Early says that the write may complete as soon as From may change, whatever the attributes promise. The
	// peer then need not answer, which takes either side a system call where the network is a socket.
	Early bool
}

// Tokens is how many tokens an endpoint tells apart.
const Tokens = 1024

// A Completion is the end of one of this endpoint's writes or, if Arrived, a peer's write with data.
type Completion struct {
	Token   uint32
	Data    uint64
	Arrived bool
	Err     error // a *Failure, or nil
}

// Failure is a call of the library that failed, or an operation that it reports as failed.
type Failure struct {
	Call string // as the library names it
	Code int    // the library's number, positive
	Text string // the library's and the provider's words
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s (%d)", f.Call, f.Text, f.Code) }
