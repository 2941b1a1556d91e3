package spec

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weftgo/weft"
)

// Transfer is a message to a peer, or from one. Messages between two ranks are matched in their order:
// the first send of one rank with the first receive of the other, and so on.
type Transfer struct {
	Tensor  weft.Tensor // rows of elements; shapes play no part
	Peer    int
	Receive bool
}

// Name is the operation in errors: "send".
func (t *Transfer) Name() string {
	if t.Receive {
		return "receive"
	}
	return "send"
}

// Fingerprint is what both sides of a message must have in common, in one word: type and count.
func (t *Transfer) Fingerprint() Fingerprint {
	return Fingerprint(PointToPoint)<<kindShift | Fingerprint(t.Tensor.DType)<<dtypeShift |
		Fingerprint(t.Tensor.Elems())
}

// Differs says how the peer's side of the message differs from this rank's.
func (t *Transfer) Differs(peer uint64) string {
	f := Fingerprint(peer)
	return MessagesDiffer(t.Receive, int(f&maxElems), weft.DType(f>>dtypeShift&31), t.Tensor.Elems(), t.Tensor.DType)
}

// MessagesDiffer says how the peer's side of a message differs from this rank's, which receives it or
// sends it.
func MessagesDiffer(receive bool, count int, t weft.DType, own int, ownType weft.DType) string {
	theirs, ours := "receives", "sends"
	if receive {
		theirs, ours = ours, theirs
	}
	return fmt.Sprintf("it %s %d %v, this rank %s %d %v", theirs, count, t, ours, own, ownType)
}

// checkTransfers says what is wrong with the messages of a call.
func (c *Call) checkTransfers(rank, ranks int) error {
	switch {
	case c.Algorithm != "":
		return weft.Invalidf("%s: messages have no algorithm %q", c.Name(), c.Algorithm)
	case c.Norm != nil || c.Words.Given():
		return weft.Invalidf("%s: messages have neither a norm nor words; leave them out", c.Name())
	case c.Blocks != 0 || c.Threads != 0 || len(c.Extras) > 0:
		return weft.Invalidf("%s: messages have neither blocks nor threads nor extras; leave them out", c.Name())
	case c.Symmetric:
		return weft.Invalidf("%s: messages are not symmetric; leave that out", c.Name())
	}
	own := false
	for i := range c.Transfers {
		t := &c.Transfers[i]
		own = own || t.Peer == rank
		if t.Peer < 0 || t.Peer >= ranks {
			return weft.Invalidf("%s: rank %d of %d", t.Name(), t.Peer, ranks)
		}
		if _, err := checkTensor(t.Name(), "tensor", &t.Tensor); err != nil {
			return err
		}
	}
	if err := c.checkReceives(); err != nil || !own {
		return err
	}
	// A rank's messages to itself meet no other rank, so they are matched here.
	n := len(c.Transfers)
	for s, r := c.NextOwn(rank, false, 0), c.NextOwn(rank, true, 0); s < n || r < n; {
		if s == n || r == n {
			return weft.Invalidf("%s: a message of rank %d to itself takes a send and a receive in one batch",
				c.Name(), rank)
		}
		send, receive := &c.Transfers[s], &c.Transfers[r]
		if f := receive.Fingerprint(); f != send.Fingerprint() {
			return weft.Invalidf("%s: rank %d to itself: %s", c.Name(), rank, send.Differs(uint64(f)))
		}
		s, r = c.NextOwn(rank, false, s+1), c.NextOwn(rank, true, r+1)
	}
	return nil
}

// checkReceives refuses messages that are received into memory of another one.
func (c *Call) checkReceives() error {
	if len(c.Transfers) < 2 {
		return nil
	}
	var few [16]*Transfer
	order := few[:0]
	for i := range c.Transfers {
		if t := &c.Transfers[i]; t.Tensor.Bytes() > 0 {
			order = append(order, t)
		}
	}
	at := func(t *Transfer) uintptr { return uintptr(t.Tensor.Data) }
	slices.SortFunc(order, func(a, b *Transfer) int { return cmp.Compare(at(a), at(b)) })
	// Of what begins before a message, it is enough to know what ends last: of all, and of those received.
	var last, received *Transfer
	end := func(t *Transfer) uintptr { return at(t) + uintptr(t.Tensor.Bytes()) }
	for _, t := range order {
		other := received
		if t.Receive {
			other = last
		}
		if other != nil && at(t) < end(other) {
			return weft.Invalidf("%s: the tensor of a %s with rank %d overlaps that of a %s with rank %d; what is "+
				"received lies apart", c.Name(), t.Name(), t.Peer, other.Name(), other.Peer)
		}
		if last == nil || end(t) > end(last) {
			last = t
		}
		if t.Receive && (received == nil || end(t) > end(received)) {
			received = t
		}
	}
	return nil
}

// NextOwn is the next of a rank's sends to itself, or of its receives from itself, from an index on:
// the number of messages if there is none.
func (c *Call) NextOwn(rank int, receive bool, from int) int {
	for from < len(c.Transfers) && (c.Transfers[from].Peer != rank || c.Transfers[from].Receive != receive) {
		from++
	}
	return from
}
