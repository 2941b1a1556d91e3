// Package cuda drives NVIDIA GPUs from Go without cgo, without CUDA's headers and without a
// toolkit. It needs only the driver, which it opens at run time. It is useful on its own. Package
// nvrtc compiles kernels for it, package cudatest is a driver for tests on machines without a GPU.
//
// # Data flow
//
//	driver, err := cuda.Open()
//	device, err := driver.Device(0)
//	context, err := device.Primary()                     // retained; Close gives it back
//	stream, err := context.NewStream(cuda.StreamOptions{})
//	data, err := context.Alloc(4 * n)
//	module, err := context.LoadModule(cubin)
//	scale, err := module.Function("scale")
//	config := cuda.LaunchConfig{Grid: cuda.Dim{X: blocks}, Block: cuda.Dim{X: 256}}
//	launch, err := scale.Prepare(config, data.Pointer(), int32(n), float32(2))
//	factor, err := cuda.Arg[float32](launch, 2)
//	for step := range steps {
//		*factor = float32(step)
//		err = launch.Start(stream)
//	}
//	err = stream.Wait(ctx)
//
// Between a method and the driver lies one table of typed functions. It is filled from libcuda,
// function by function, each in the form of a named version of CUDA. A function that the driver
// lacks returns [ErrUnsupported] when it is called, with the version to install. libcuda is not
// linked: a program with this package also starts where there is no driver. It does need glibc.
//
// # Who owns what
//
// The caller that makes an object closes it: contexts, streams, events, memory, modules, graphs.
// Close may be called again, and does nothing then. Objects of a context must be closed before the
// context. A closed object's methods return [ErrClosed] and do not reach the driver. Functions live
// as long as their module; a [Launch] needs no closing. A [Virtual] owns its mappings, its
// addresses and its allocations, and takes them down in this order, also when making it fails
// half-way. A stream that comes from elsewhere ([Context.WrapStream]) stays its maker's.
//
// Memory that the device reads or writes after a call has returned must not be Go's: the collector
// knows nothing of the device. [HostMemory] is for that. The plain [Context.Upload] and
// [Context.Download] wait, and take any memory.
//
// # Ordering
//
// Work in one stream runs in order. Between streams only events make an order: [Event.Record], then
// [Stream.WaitEvent]. The host sees the result of work after [Stream.Wait], [Stream.Synchronize], a
// Query that says done, or the same of an event recorded after the work. An error of a kernel shows
// in a later call, of any kind; codes that are [Code.Sticky] end the context for good.
//
// # Threads
//
// The driver keeps a current context for every thread of the operating system, and goroutines
// change threads. So every call that needs a context makes its own current, in the same crossing
// from Go into C, right before the call itself. No other call comes between the two, no thread has
// to be locked, and it costs a few nanoseconds instead of a second crossing. Any goroutine may use
// any object at any time; types that are for one goroutine at a time ([Launch]) say so.
//
// The context stays current on that thread. That does not disturb Go's own threads, since every
// call sets its context. It may disturb a foreign thread: where a host program calls into Go, its
// thread's context must be the same when the call returns. [Context.Bind] is for such an entry: it
// locks the goroutine to the thread and sets the context; its unbind restores the old one. An
// executor goroutine for each device, the other common way, would cost a hand-over of microseconds
// for every call.
//
// # Captures of others
//
// While a thread captures in global mode, as other libraries do, the driver refuses other threads'
// questions whether work is done, and breaks the capture. Query, Wait and Synchronize of streams
// and events, [Context.Upload] and [Context.Download] are made in the thread's relaxed mode, so
// that neither happens.
//
// # Cost
//
// Calls for inner loops do not allocate, and cost 3 to 21 ns more than a bare crossing into C (42
// ns on the same machine), including setting the context. They are: starting a [Launch], recording
// and querying events, querying and waiting for streams, async copies and fills, launching graphs,
// [Context.SetCurrent].
//
// # What is not here
//
// Host callbacks, textures, arrays, managed memory.
//
// No multicast group is ever made by this package itself: only [Context.NewMulticastGroup] makes one, for
// a caller that asks for it. Its calls were never made on a GPU: they are tested on the fake driver alone.
package cuda
