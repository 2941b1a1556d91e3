package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
)

// TestHostIsCutOff: the link of one of three hosts goes down. The others name a rank of it within the time
// that WEFT_HEARTBEAT gives, mask it, and go on; it does not.
func TestHostIsCutOff(t *testing.T) {
	needHosts(t)
	t.Setenv("WEFT_HEARTBEAT", "3s")
	p := start(t, testJob{Job: Job{Args: []string{"rank:cut"}, Size: 4, Hosts: 3}})
	p.want(0, `0 goes on without \[3\]`, `1 goes on without \[3\]`, `2 goes on without \[3\]`, `3 does not go on`)
}

// loseHost is a rank of a job of which the last rank takes its host off the network.
func loseHost() {
	if err := loseHostAs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func loseHostAs() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := weft.Join(ctx, weft.WithDeadline(30*time.Second))
	if err != nil {
		return err
	}
	defer c.Close()
	agree := func(what string) error { return c.Operations().VerifySame(ctx, "agree", what, nil) }
	for i := 0; i < 20 && err == nil; i++ {
		err = agree(strconv.Itoa(i))
	}
	// The last rank may be gone before others have heard its last word.
	last := c.Size() - 1
	if c.Rank() == last {
		if err := errors.Join(err, takeDown()); err != nil {
			return err
		}
	}
	// What the others say here may have come to the last rank before it was cut off, but not what they say next.
	for i := 0; i < 2 && err == nil; i++ {
		err = agree("never")
	}
	peer, ok := errors.AsType[*weft.PeerError](err)
	if !ok || !errors.Is(err, weft.ErrDied) || (c.Rank() == last) == (peer.Rank == last) {
		return fmt.Errorf("rank %d: %w", c.Rank(), err)
	}
	if c.Rank() == last {
		if err := c.SetMask(ctx, 0, 1, 2); !errors.Is(err, weft.ErrMasked) {
			return fmt.Errorf("the rank that is cut off goes on: %w", err)
		}
		fmt.Println(c.Rank(), "does not go on")
		return nil
	}
	if err := c.SetMask(ctx, last); err != nil {
		return err
	}
	if err := agree("together"); err != nil {
		return err
	}
	fmt.Println(c.Rank(), "goes on without", c.Mask())
	return nil
}

// takeDown takes down all interfaces of this network namespace but loopback.
func takeDown() error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		request, err := unix.NewIfreq(i.Name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request); err != nil {
			return err
		}
		request.SetUint16(request.Uint16() &^ unix.IFF_UP)
		if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
			return fmt.Errorf("take %s down: %w", i.Name, err)
		}
	}
	return nil
}
