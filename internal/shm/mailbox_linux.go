package shm

import (
	"context"
	"sync"
)

// parcel is a message between two ranks of the same process: a frame, and the things that a socket
// would carry beside it.
type parcel struct {
	from int
	frame
	offer offer
}

// mailbox is where a rank receives from the ranks of its own process, in place of a socket for
// each.
type mailbox struct {
	parcels chan parcel
	joined  chan struct{} // closed once roster is set
	roster  [16]byte
	closed  chan struct{}
	closing sync.Once
	// Posting holds mu for reading, so that close, which takes it, drains behind the last poster.
	mu sync.RWMutex
}

// mailboxDepth is how many parcels a rank may leave unread before its senders wait.
const mailboxDepth = 256

// mailboxes holds the mailboxes of this process by token. It is how ranks that are goroutines find
// each other.
var mailboxes struct {
	sync.Mutex
	byToken map[[16]byte]*mailbox
}

func openMailbox(token [16]byte) *mailbox {
	b := &mailbox{parcels: make(chan parcel, mailboxDepth), joined: make(chan struct{}), closed: make(chan struct{})}
	mailboxes.Lock()
	defer mailboxes.Unlock()
	if mailboxes.byToken == nil {
		mailboxes.byToken = make(map[[16]byte]*mailbox)
	}
	mailboxes.byToken[token] = b
	return b
}

// findMailbox returns nil if the rank that opened it has closed it.
func findMailbox(token [16]byte) *mailbox {
	mailboxes.Lock()
	defer mailboxes.Unlock()
	return mailboxes.byToken[token]
}

// join publishes the owner's list of members. It is called at most once.
func (b *mailbox) join(roster [16]byte) {
	b.roster = roster
	close(b.joined)
}

// post hands p over, or returns ErrLeft if the owner has gone, or why ctx ended. On error the
// caller keeps the content of p.
func (b *mailbox) post(ctx context.Context, p parcel) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	select {
	case <-b.closed:
		return ErrLeft
	default:
	}
	select {
	case b.parcels <- p:
		return nil
	default:
	}
	select {
	case b.parcels <- p:
		return nil
	case <-b.closed:
		return ErrLeft
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close takes the mailbox out of the process's table and drops unread parcels.
func (b *mailbox) close(token [16]byte) {
	b.closing.Do(func() {
		mailboxes.Lock()
		delete(mailboxes.byToken, token)
		mailboxes.Unlock()
		close(b.closed)
		b.mu.Lock()
		defer b.mu.Unlock()
		for {
			select {
			case p := <-b.parcels:
				p.offer.drop()
			default:
				return
			}
		}
	})
}
