package shm

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// Listener is a rank's end of a mesh that is still to be formed. It makes one mesh.
type Listener struct {
	// OnFailure, unless nil, is called when Connect is about to fail, before peers can see this
	// rank go. It may be set until then.
	OnFailure func(err error)

	address Address
	socket  *net.UnixListener
	mailbox *mailbox
	used    atomic.Bool
	closing sync.Once
}

// Listen opens an abstract Unix socket under a random name. It belongs to no file system and is
// gone with the process.
//
// The host has the name that the environment or the system gives it.
func Listen() (*Listener, error) { return ListenOn("") }

// ListenOn is Listen for a rank that takes its host for one of another name. An empty name changes
// nothing.
func ListenOn(host string) (*Listener, error) {
	host, err := hostIdentity(host)
	if err != nil {
		return nil, err
	}
	name := random()
	a := Address{
		Host: host, PID: os.Getpid(), UID: os.Geteuid(), Process: thisProcess(),
		Socket: "weft-" + hex.EncodeToString(name[:]), Token: random(),
	}
	socket, err := net.ListenUnix(network, a.socketAddress())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &Listener{address: a, socket: socket, mailbox: openMailbox(a.Token)}, nil
}

// network is connection-oriented and keeps packets apart: see the layout of a frame.
const network = "unixpacket"

func (a Address) socketAddress() *net.UnixAddr {
	return &net.UnixAddr{Name: "@" + a.Socket, Net: network} // "@" stands for the NUL that makes the name abstract
}

// Address is the address that the other ranks pass to Connect. The listener accepts from now on.
func (l *Listener) Address() Address { return l.address }

// Close closes a listener that Connect was not called on. After Connect it does nothing.
func (l *Listener) Close() error {
	if !l.used.CompareAndSwap(false, true) {
		return nil
	}
	l.mailbox.close(l.address.Token)
	return l.stop()
}

// stop closes the socket, so that strangers can't come any more.
func (l *Listener) stop() (err error) {
	l.closing.Do(func() { err = l.socket.Close() })
	return err
}
