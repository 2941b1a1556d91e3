package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/port/service"
)

// TestDropped closes the source of puts that were not flushed. Either the peer gets the signal that follows, or this
// rank is told that it does not: by a call of the channel, or when the service is closed, and then once.
func TestDropped(t *testing.T) {
	onNetworks(t, func(t *testing.T, options func(rank int) service.Options) {
		dropped := 0
		onRanks(t, 2, options, func(ctx context.Context, c *weft.Comm, _ *service.Service) error {
			for round := range 8 {
				told, err := drop(ctx, c, options(c.Rank()), round%2 == 0)
				if err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				if told && c.Rank() == 0 {
					dropped++
				}
			}
			return nil
		})
		t.Log(dropped, "of 8 were dropped")
	})
}

// drop makes a service, and reports whether rank 0 was told that it has dropped something.
func drop(ctx context.Context, c *weft.Comm, o service.Options, more bool) (told bool, err error) {
	const size, puts = 1 << 20, 3
	s, err := service.New(ctx, c, o)
	if err != nil {
		return false, err
	}
	defer s.Close()
	m, err := s.Register(ctx, make([]byte, size))
	if err != nil {
		return false, err
	}
	ch, err := s.Connect(ctx, 1-c.Rank(), service.ChannelOptions{Kind: service.PortChannel}, m, m)
	if err != nil {
		return false, err
	}
	// Neither leaves before the other has connected.
	if _, err := c.Operations().GatherNotes(ctx, "connected", nil); err != nil {
		return false, err
	}
	var note []byte
	if c.Rank() == 0 {
		for range puts {
			if err := ch.Put(ctx, 0, 0, size); err != nil {
				return false, err
			}
		}
		if err := m.Close(); err != nil {
			return false, err
		}
		said := ch.Signal(ctx)
		if more {
			said = errors.Join(said, ch.Flush(ctx))
		}
		closed := s.Close()
		for _, err := range []error{said, closed} {
			if err != nil && (!errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "closed before")) {
				return false, fmt.Errorf("told that %w", err)
			}
		}
		if said != nil && closed != nil {
			return false, fmt.Errorf("told again by Close: %w", closed)
		}
		if said != nil || closed != nil {
			note = []byte{1}
		}
	}
	notes, err := c.Operations().GatherNotes(ctx, "dropped", note)
	if err != nil {
		return false, err
	}
	if told = len(notes[0]) > 0; told || c.Rank() == 0 {
		return told, nil
	}
	return false, ch.Wait(ctx)
}
