// Package bootstrap lets the ranks of a job find each other, prove that they belong together, and
// exchange the few kilobytes that everything else is set up from.
//
// # Joining
//
// Every rank calls one of
//
//   - [Detect] and [Environment.Dial]: the launcher's environment variables say which rank this is
//     and where the others are;
//   - [DialTCP]: rank 0 listens at a host:port, the others dial it;
//   - [NewID] on rank 0, [ID.Dial] on all: one short text, handed out by any means, says where and
//     in which job;
//   - [DialTCPStore]: the ranks meet at a PyTorch TCPStore, such as torchrun's;
//   - [NewInProcess]: the ranks are goroutines.
//
// and gets a [Bootstrap]:
//
//	b, err := env.Dial(ctx)
//	if err != nil {
//		return err
//	}
//	defer b.Close()
//	addresses, err := b.AllGather(ctx, myAddress)
//
// # Data flow
//
// The ranks form a star with rank 0 in the middle. An AllGather sends each rank's share up and all
// shares, encoded once, down again; a Barrier is an AllGather of nothing; joining is the first
// AllGather, of the addresses at which ranks listen. Send and Recv with rank 0 use the star's link.
// For any other pair, the first Send opens a link of the pair's own; from then on, each direction
// stays on the link that it used first, so that messages arrive in order.
//
//	      rank 0
//	     /   |   \         collectives, news of failures, Send and Recv with rank 0
//	rank 1   |   rank 3
//	     \ rank 2          a pair's own link, from its first Send on
//	      '--'
//
// A link is a TCP connection with one goroutine that reads and one that writes from a queue.
// Therefore no caller waits for a slow peer, and no slow peer delays rank 0's messages to the
// others. In process, a link is a function call into the peer. The protocol above it is the same.
//
// # Cost
//
// A rank takes part in two sequential rounds for a collective, however many ranks there are: it
// speaks once and listens once. Rank 0 handles one message each way for every other rank, n*n*b
// bytes in all for shares of b bytes. In return it sees every failure first; for kilobytes the cost
// is small. Joining costs a connection, two round trips of handshake and one AllGather: 2 to 3 ms
// for eight ranks of one host, 0.2 s for 64 processes started on two cores.
//
// # Failures
//
// Rank 0 watches each rank's process by its link: the system closes that when the process ends.
// Keep-alive probes detect a system that has ended. Rank 0 spreads the news before its own callers
// get it, and so does every other rank. A rank that exits because of a failure is therefore not
// taken for its cause. Calls return a [*PeerError] with the rank to blame:
//
//   - [ErrDied]: the connection ended without a farewell, or a new connection finds no listener;
//   - [ErrLeft]: it called Close;
//   - [ErrTimeout]: the rank was missing at a deadline. A rank asks rank 0 which one is missing,
//     and blames rank 0 if there is no answer;
//   - [ErrAborted]: it gave a collective up, so it takes part in no more of them;
//   - [ErrMismatch], [ErrProtocol], [ErrDuplicateRank], [ErrSizeMismatch]: it does not fit.
//
// The order of events does not decide which calls fail: news of a lost rank carries the number of
// collectives that it took part in, and those still complete. A job forms with all of its ranks or
// not at all: the join of every rank fails when one of them dies before the last has come.
//
// Ranks that set up something beyond the bootstrap use [Witness] to report which rank made them
// fail.
//
// A rank that ends before it has reached rank 0 breaks no connection. "weft run" writes down how
// (see [EndedVariable]), and ranks that join read it.
//
// Where rank 0 itself has gone, ranks watch each other: a Recv opens the pair's own link, if there
// is none, and sees it end.
//
// # Trust
//
// Before anything a peer says is believed, both sides prove that they hold the job's secret, by
// HMAC-SHA256 over two fresh nonces, their ranks, the number of ranks, the job and the direction.
// Until then a connection may say 512 bytes, the first of them within a second and all within ten
// more; failing costs it the connection, and the job nothing. If thousands of unproven connections
// are open, the oldest one of the address with most of them is closed.
//
// Without a secret only peers
// on the loopback interface are accepted. Frames are versioned, limited in length, and read by one
// fuzzed function. Connections are authenticated when they are made, and neither encrypted nor
// signed afterwards: an attacker that can alter packets between the hosts can alter messages.
package bootstrap
