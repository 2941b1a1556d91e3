// Package emulate runs CUDA kernels on a machine without a GPU, for tests: the very same sources,
// compiled by the host's C++ compiler, on package cudatest's driver.
//
//	emulate.Need(t) // skips where there is no compiler
//	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{Seed: 1, Tear: true})
//	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
//	// ... the code under test ...
//	if err := machine.Check(); err != nil { t.Error(err) }
//
// # How it works
//
// [Compiler] preprocesses a spec against a prelude with the built-in names of CUDA C++, and against
// its own ptx.cuh instead of package device's, whose assembly becomes C++. Of the result,
// kernels are listed (those that are extern "C" and in no namespace, and those that the spec's
// Kernels name), and shared memory becomes memory of the block that runs. The shared library that
// is made of it, with the scheduler in it, is the image. A launch runs to its end where it is
// enqueued; launches on several goroutines run at the same time.
//
// A CUDA thread is a fiber with a stack of 64 KiB, of which it uses a page or two. All blocks of a
// grid live at once, on one thread of the operating system; blocks and threads take turns. A block that
// has ended leaves its stacks and its shared memory to one that begins. Warps
// meet in collectives with the mask that is given, blocks at barriers. Loads that a kernel may poll
// with (relaxed and acquire ones, atomics), pause and barrier_done let others run after a while. If
// all fibers only poll, the thread yields the processor, and after a while sleeps. A loop that polls
// memory in another way never ends.
//
// At addresses of a multicast group (multimem_store16 and so on) a store goes to the memory of every device of
// it, and a sum adds what all of them hold, in another order at each address.
//
// Bulk copies happen a few polls after they were begun. Shared memory begins as nonsense.
//
// # Order of memory
//
// Words are the host's atomics, and a fence is one of all threads. With [Options].Tear, a load of
// several words lets others run in between, and a store to another device's memory or the host's is
// kept back, each word for itself, and lands at any time: at the latest when its block ends, before
// the same block loads that word, or when its thread, or one that it has met at a barrier or in a
// warp since, makes a fence, a release or an atomic operation of acquire and release. So flags
// overtake data wherever the kernel lets them. Plain stores of C++ and those to the device's own
// memory are not kept back.
//
// Stores to a multicast group are kept back in the same way, until the thread that made them has made a
// fence_alias as well, and a fence behind it.
//
// With [Options].Seed blocks and threads run in an order that the seed decides. One launch by
// itself then runs the same way each time.
//
// # What fails
//
// A launch fails, and with it the context, as on a GPU, if
//
//   - a function of ptx.cuh or an atomic accesses memory that the device cannot reach, or an
//     unaligned address;
//   - one accesses a multicast group of which not all devices have bound memory, or by an address of
//     memory that is no group's, or the other way round;
//   - a plain access has no memory;
//   - the threads of a block wait at different barriers, or the lanes of one mask in different
//     collectives;
//   - a lane is not in its own mask;
//   - no thread of a block can go on;
//   - a kernel does not wait for its bulk stores or loads;
//   - a thread's stack overflows;
//   - the launch takes longer than [Options].Limit.
//
// [cudatest.Machine.Check] then names the block and the thread. A kernel with more than 48 KiB of
// static shared memory does not compile, and a launch with more threads than its bounds does not
// start.
//
// # What it is not
//
// Plain loads and stores are not checked as long as the process has the memory, even if it belongs to
// something else. Float
// operators, other than the functions, are not contracted, and their NaNs are the host's. There are
// no clusters, textures or surfaces and no approximate functions, NaNs of fp64 are the host's,
// and variables in device memory are the process's, not a module's. __activemask is the caller
// alone.
package emulate
