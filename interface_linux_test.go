package weft_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestFabricOnLoopback: where ranks meet on loopback and take nobody else in, so does their fabric, for windows and for
// what has a domain to itself, and that of a part of the ranks.
func TestFabricOnLoopback(t *testing.T) {
	fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close()
	t.Setenv("WEFT_HEARTBEAT", "60s")
	for _, loopback := range []string{"127.0.0.1", "::1"} {
		for _, secret := range []string{"", "s3cret"} { // with one the interface is named
			t.Run(fmt.Sprintf("%s with secret %q", loopback, secret), func(t *testing.T) {
				ln, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
				if err != nil {
					t.Skip(err)
				}
				config := bootstrap.TCPConfig{Size: 2, Address: ln.Addr().String(), Secret: []byte(secret)}
				if secret != "" {
					config.Interface = loopback
				}
				ln.Close()
				errs := make([]error, config.Size)
				var ranks sync.WaitGroup
				for rank := range errs {
					ranks.Go(func() { errs[rank] = meetOnLoopback(testContext(t), config, rank) })
				}
				ranks.Wait()
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func meetOnLoopback(ctx context.Context, config bootstrap.TCPConfig, rank int) error {
	config.Rank = rank
	c, err := weft.Join(ctx, weft.WithDeadline(time.Minute), weft.OnHost([]string{"a", "b"}[rank]),
		weft.WithDial(func(ctx context.Context) (bootstrap.Bootstrap, error) { return bootstrap.DialTCP(ctx, config) }))
	if err != nil {
		return err
	}
	defer c.Close()
	part, err := c.Split(ctx, 0, rank)
	if err != nil {
		return err
	}
	defer part.Close()
	for _, c := range []*weft.Comm{c, part} {
		if _, err := c.Alloc(ctx, 1<<12); err != nil {
			return err
		}
		own, err := c.Operations().OpenFabric(ctx, fabric.Options{Rank: rank, Size: c.Size()})
		if err != nil {
			return err
		}
		defer own.Close()
		for _, d := range []*fabric.Domain{c.Operations().Fabric(), own} {
			if a := d.Address(); a.IsValid() && !a.Addr().IsLoopback() {
				return fmt.Errorf("rank %d's fabric listens on %v", rank, a)
			}
		}
	}
	return nil
}
