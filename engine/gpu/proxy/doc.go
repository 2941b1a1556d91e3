// Package proxy lets a goroutine of the host do a part of what a stream does: what crosses to other hosts, say.
//
//	p, err := proxy.New(ctx, comm, proxy.Spec{Op: "new group", Owner: "group", Words: words}) // collective
//	stream, err := p.Enter(ctx, "all-reduce", s)
//	err = p.Start(stream, 7, func(h *proxy.Hand) error { // by the goroutine, when the stream is there
//		mark, err := h.Copy(pinned, gpu, n)
//		...
//		return h.Await(mark)
//	})
//	err = p.Finish(ctx, s)
//
// # Data flow
//
// Start enqueues one kernel, the hand-over (hand_over.cu). When the stream comes to it, it writes the number of the
// call into pinned memory of the host. The proxy's goroutine finds it there, and calls what Start was given. That
// orders copies between the GPU's memory and pinned memory, which the waiting kernel makes, and waits for what it
// likes. When it returns the kernel ends, and the stream goes on. Work before the kernel is over when the call
// begins, and work behind it sees all that was copied.
//
// The kernel copies because no stream is safe to. Its copies could share a hardware queue with work of the caller's
// that is enqueued behind the kernel, and wait for that.
//
// # Graphs
//
// The kernel counts its operations on the device, so a captured call may be replayed any number of times. What Start
// was given is called anew each time, and kept until Close. The goroutine polls once there is such a call, since
// nobody tells it of replays.
//
// # Memory layout
//
// In pinned memory lie the call (the operation's number on the device, and the call's), a beat that the host changes
// while it gets on, a word for each block of the kernel, which says what it has copied, and a ring of 64 orders. An
// order's sequence has the operation's number in its upper bits. It is written last. A slot is written again when
// all blocks have done what it said.
//
// # Order
//
// A kernel ends before the next one of the lane begins, so there is one call at a time. The goroutine makes calls in
// the order of the streams, the same on all ranks, as all operations of a lane.
//
// # Failures
//
// Waits of the goroutine are those of a [channel.Waiter]: they end at the communicator's deadline and by its abort
// word. The kernel ends when the goroutine has left the call, or after twice the deadline without a beat, which
// blames this rank. So what waits until the GPU is idle, as SetMask does, finds nothing of a call underway. What a
// call returns becomes the communicator's failure: here at once, and after a while at others, which may have met it
// by themselves by then, in their own words ([weft.Operations.FailHere]). The kernel of a failed call gives up, and
// leaves a wait record, so its stream goes on and its caller learns of it.
//
// # Cost
//
// One write of a word over PCIe, and the reads by which either side polls: the floor of a call that does nothing is two
// trips.
package proxy
