//go:build !linux

package shm

import (
	"context"
	"time"
)

// Region is memory that ranks share. It exists on Linux only.
type Region struct{}

// Create returns [ErrNeedsLinux].
func Create(string, int, Options) (*Region, error) { return nil, ErrNeedsLinux }

// FromFD returns [ErrNeedsLinux].
func FromFD(int, int) (*Region, error) { return nil, ErrNeedsLinux }

// Bytes returns nil.
func (*Region) Bytes() []byte { return nil }

// FD returns -1.
func (*Region) FD() int { return -1 }

// Size returns 0.
func (*Region) Size() int { return 0 }

// HugePages returns false.
func (*Region) HugePages() bool { return false }

// Retain does nothing.
func (*Region) Retain() {}

// Release returns [ErrNeedsLinux].
func (*Region) Release() error { return ErrNeedsLinux }

// HugeStatus says that this system has no regions.
func HugeStatus() string { return ErrNeedsLinux.Error() }

// Listener is a rank's end of a mesh that is still to be formed. It exists on Linux only.
type Listener struct{ OnFailure func(err error) }

// Listen returns [ErrNeedsLinux].
func Listen() (*Listener, error) { return nil, ErrNeedsLinux }

// ListenOn returns [ErrNeedsLinux].
func ListenOn(string) (*Listener, error) { return nil, ErrNeedsLinux }

// Address returns the zero address.
func (*Listener) Address() Address { return Address{} }

// Close returns [ErrNeedsLinux].
func (*Listener) Close() error { return ErrNeedsLinux }

// Connect returns [ErrNeedsLinux].
func (*Listener) Connect(context.Context, int, []Address, func(Event)) (*Mesh, error) {
	return nil, ErrNeedsLinux
}

// Mesh connects a rank with every other rank of its host. It exists on Linux only.
type Mesh struct{}

// Size returns 0.
func (*Mesh) Size() int { return 0 }

// Self returns 0.
func (*Mesh) Self() int { return 0 }

// Awaited returns -1.
func (*Mesh) Awaited() int { return -1 }

// Exit knows nothing.
func (*Mesh) Exit(int, time.Duration) (string, bool) { return "", false }

// Exchange returns [ErrNeedsLinux].
func (*Mesh) Exchange(context.Context, uint64, *Region, func(int) bool) ([]*Region, error) {
	return nil, ErrNeedsLinux
}

// ExchangeFD returns [ErrNeedsLinux].
func (*Mesh) ExchangeFD(context.Context, uint64, int, func(int) bool) ([]int, error) {
	return nil, ErrNeedsLinux
}

// ExchangeMemory returns [ErrNeedsLinux].
func (*Mesh) ExchangeMemory(context.Context, uint64, []byte, func(int) bool) ([][]byte, error) {
	return nil, ErrNeedsLinux
}

// Send returns [ErrNeedsLinux].
func (*Mesh) Send(int, []byte) error { return ErrNeedsLinux }

// Close returns [ErrNeedsLinux].
func (*Mesh) Close() error { return ErrNeedsLinux }

// Alias is one more mapping of a Region's memory. It exists on Linux only.
type Alias struct{}

// Alias returns [ErrNeedsLinux].
func (*Region) Alias() (*Alias, error) { return nil, ErrNeedsLinux }

// Bytes returns nil.
func (*Alias) Bytes() []byte { return nil }

// Retire returns [ErrNeedsLinux].
func (*Alias) Retire() error { return ErrNeedsLinux }

// Close returns [ErrNeedsLinux].
func (*Alias) Close() error { return ErrNeedsLinux }
