// Package cudatest is a CUDA driver made of Go, for tests of packages that are built on package
// cuda. It needs no GPU.
//
//	m := cudatest.New(cudatest.Config{Devices: 2})
//	m.Kernel("scale", func(c *cudatest.Call, data cuda.Pointer, n int32, by float32) { ... })
//	driver, err := m.Open()
//	// ... the code under test ...
//	if err := m.Check(); err != nil { t.Error(err) }
//
// # What it does
//
// Device memory is a memory file mapped into the process, so a [cuda.Pointer] is an address and
// kernels, which are Go functions registered under the kernel's name, read and write it
// ([Call.Bytes]). Allocations are exported as descriptors of real memory files, and IPC handles
// name one, so that processes can share them as they would a GPU's. Streams run work at once, on
// the goroutine that enqueues it; a capture records it instead, and a graph's launch runs the
// record. Events carry the time.
//
// # What it checks
//
// An access by a device must lie in existing memory that the device may reach, by ownership, peer
// access or a mapping's list; a stray one loses the context, as on a GPU. Objects must be used in
// their own context and before their end, freed once, and be gone at the end. Async copies must use
// pinned host memory unless [Config.Pageable]. Calls that a capture cannot hold invalidate it. A
// mistake gets the driver's error and, if only the program can be its cause, a line in
// [Machine.Check].
//
// [Machine.Fail] makes any call fail at its n-th time, to test that the code under test leaks
// nothing.
//
// # What it is not
//
// Nothing is asynchronous, but for a kernel that another goroutine has enqueued and that still
// runs, for which queries and synchronisations of its stream and context wait: a missing
// synchronisation passes unseen. Kernels in Go have no threads; package emulate runs those of CUDA
// C++. Access of the host to device memory is not caught.
package cudatest
