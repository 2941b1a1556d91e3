package sys

import "unsafe"

// Result is the result of every entry.
type Result int32

const (
	Success Result = 0
	// Missing is no code of the driver's: the entry does not exist.
	Missing Result = -1
)

// Device is a device's handle. It is not its ordinal, though today's drivers give the same number.
type Device int32

// Handles, as opaque as the driver makes them.
type (
	Context    uintptr
	Stream     uintptr
	Event      uintptr
	Module     uintptr
	Function   uintptr
	Graph      uintptr
	GraphExec  uintptr
	Allocation uint64
)

// Pointer is an address in the unified address space.
type Pointer uint64

// UUID is CUuuid.
type UUID [16]byte

// IpcHandle is CUipcMemHandle.
type IpcHandle [64]byte

// FabricHandle is CUmemFabricHandle.
type FabricHandle [64]byte

// Location is CUmemLocation.
type Location struct {
	Type int32
	ID   int32
}

// AllocationProp is CUmemAllocationProp.
type AllocationProp struct {
	Type          int32
	HandleTypes   int32
	Location      Location
	_             unsafe.Pointer // of another operating system
	Compression   uint8
	GPUDirectRDMA uint8
	Usage         uint16
	_             [4]byte
}

// MulticastProp is CUmulticastObjectProp.
type MulticastProp struct {
	Devices     uint32
	_           [4]byte
	Size        uint64
	HandleTypes uint64
	Flags       uint64
}

// AccessDesc is CUmemAccessDesc.
type AccessDesc struct {
	Location Location
	Flags    int32
}

// LaunchConfig is CUlaunchConfig.
type LaunchConfig struct {
	GridX, GridY, GridZ    uint32
	BlockX, BlockY, BlockZ uint32
	SharedBytes            uint32
	Stream                 Stream
	Attributes             *LaunchAttribute
	AttributeCount         uint32
}

// LaunchAttribute is CUlaunchAttribute. All values used here are made of 32-bit words.
type LaunchAttribute struct {
	ID    int32
	_     [4]byte
	Value [16]uint32
}

// JITValues are the values of [JITOptions]: in C an array of pointers, some of which are numbers.
type JITValues struct {
	ErrorLog     *byte
	ErrorLogSize uintptr
}

// JITOptions names the options of [JITValues].
var JITOptions = [...]int32{JITErrorLogBuffer, JITErrorLogBufferSizeBytes}
