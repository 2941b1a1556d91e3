// Package gpu has the parts of operations on GPUs whose kernels meet those of other ranks: loading
// kernels, finding room for them, workspace, counting operations, capture, split phases, and the
// restart after ranks were masked. Package ep's engine is built on it, and so may kernels of your
// own be: see the package's example.
//
// # Parts
//
// An object that offers operations (a handle, say) is made on all ranks together, in this order:
//
//   - [Load] compiles and loads its kernels: a [Program]. Kernels that meet no peers are loaded
//     with [LoadLocal].
//   - [Fit] finds how many blocks its kernels may have, the same on every rank, and [Room.Take]
//     takes that room. Kernels that wait for peers must have all their blocks resident on every
//     rank, whatever runs beside them; package cuda/occupancy says why, and counts.
//   - [Workspace] values lay out the memory that its kernels work in: one that peers reach, and one
//     of this GPU alone ([NewLocal]).
//   - [NewLaunch] lays out a start of a kernel with its argument, which is changed in place from
//     call to call.
//   - [NewLane] allocates the memory, gives it its first content, and points the launches at it.
//
// A call then is [Lane.Enter], a change of arguments, [Lane.Start] and [Lane.Finish]. It allocates
// nothing.
//
// # Order
//
// All ranks make the operations of a lane in the same order, in streams of their choice that are
// ordered among each other. Each block of a kernel counts the lane's operations in device memory
// ([device.Count]), so a captured operation may be replayed any number of times, among others, in
// graphs of any size. Nothing on the device is ever reset while operations may run: values that are
// their own flags have buffers in turn, and counters grow. Package device says how kernels signal
// and wait.
//
// # Failure
//
// A wait on the device ends with the value, at the communicator's deadline, or by its abort word.
// It then stops the lane: later kernels end at once, and the communicator has failed. After
// [weft.Comm.SetMask] the next call begins the lane anew with the ranks that go on: see
// [Lane.Enter]. A lane's memory goes when nothing of the rank's runs on its GPU: [Lane.Close].
//
// # Traces
//
// Programs of a communicator that is traced are compiled to leave records, which the others have no instruction of, and
// lanes have a ring for them before their State: device/trace.cuh. A goroutine of the communicator copies what is new
// 20 times a second, 100 times where half a ring and more is new, and asks the GPU for the time once a second. At most
// eight blocks of an operation become events; operations that the ring had no room for are counted. Tests of a ring
// that overwrites and of operations that fail are of emulated GPUs alone.
//
//	begin, end                        every kernel that begins with Operation or Collective, and plans
//	signalled, arrived of each peer   collectives through slots, direct ones and barriers; openings and marks of expert
//	                                  parallelism, and its rows with a word a block; calls of own algorithms
//	arrived alone                     plans, Channel::wait of kernels of one's own
//	reduced, stored                   all-reduces; reduced: combines
//	counted, routed, placed, pushed   prepares and dispatches
package gpu
