package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// StoreConfig says how a rank meets the others through a PyTorch TCPStore.
type StoreConfig struct {
	Rank, Size int

	// Address is the store's host:port.
	Address string

	// Prefix goes before the names of all keys. Jobs that share a store need different ones.
	Prefix string

	// Secret replaces the one that rank 0 makes and the store carries.
	Secret []byte

	// Interface is as in [TCPConfig].
	Interface string

	ended string // as in [TCPConfig]
}

// DialTCPStore joins a job through a PyTorch TCPStore, such as torchrun's. The store is only the
// rendezvous: rank 0 puts an [ID] there, and the ranks then connect to each other as in [DialTCP].
// Any process that can read the store can join the job. The same ranks may join several times under
// one prefix, one job after the other.
//
// The context, or else [DefaultJoinTimeout], bounds the join only.
func DialTCPStore(ctx context.Context, cfg StoreConfig) (Bootstrap, error) {
	if err := checkRank(cfg.Rank, cfg.Size); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultJoinTimeout)
		defer cancel()
	}
	stop := reportWhile(ctx, func(context.Context) Wait {
		w := Wait{Op: opJoin.String(), Size: cfg.Size, Address: cfg.Address}
		if cfg.Rank != 0 {
			w.Ranks = []int{0}
		}
		return w
	})
	var id ID
	err := reachUntilEnded(ctx, ledger{path: cfg.ended, rank: cfg.Rank, size: cfg.Size}, func(ctx context.Context) error {
		c, err := dialStore(ctx, cfg.Address)
		if err != nil {
			return fmt.Errorf("join: %w", err)
		}
		defer c.close()
		id, err = c.exchange(ctx, cfg)
		return err
	})
	stop()
	if err != nil {
		return nil, err
	}
	b, err := DialTCP(ctx, TCPConfig{
		Rank: cfg.Rank, Size: cfg.Size, ID: id, Secret: cfg.Secret, Interface: cfg.Interface, ended: cfg.ended,
	})
	if err != nil {
		if cfg.Rank == 0 {
			err = errors.Join(err, id.Release()) // for a join that failed before it took the port
		}
		return nil, err
	}
	return b, nil
}

// exchange makes the job's ID on rank 0 and fetches it on the others.
func (c *storeClient) exchange(ctx context.Context, cfg StoreConfig) (ID, error) {
	key := func(name string, n int64) string {
		return cfg.Prefix + "weft/" + name + "/" + strconv.FormatInt(n, 10)
	}
	// How often this rank has joined says which job under this prefix is meant.
	turn, err := c.add(ctx, key("rank", int64(cfg.Rank)), 1)
	if err != nil {
		return ID{}, fmt.Errorf("join: TCPStore: %w", err)
	}
	if cfg.Rank != 0 {
		text, err := c.get(ctx, key("id", turn))
		if err != nil {
			if turn > 1 && errors.Is(err, ErrTimeout) {
				err = fmt.Errorf("%w: join %d of this rank, which rank 0 does not come to: either it joined "+
					"less often, or %w", err, turn, ErrDuplicateRank)
			}
			return ID{}, &PeerError{Rank: 0, Op: opJoin.String(), Err: fmt.Errorf("it has put no id in the TCPStore: %w", err)}
		}
		id, err := ParseID(string(text))
		if err != nil {
			return ID{}, fmt.Errorf("join: TCPStore: %w", err)
		}
		return id, nil
	}
	opts := []IDOption{preferring(addrOf(c.conn.LocalAddr()))}
	if cfg.Interface != "" {
		opts = append(opts, OnInterface(cfg.Interface))
	} else if namesLoopback(cfg.Address) {
		opts = append(opts, OnLoopback())
	}
	id, err := NewID(opts...)
	if err != nil {
		return ID{}, fmt.Errorf("join: %w", err)
	}
	if err := c.set(ctx, key("id", turn), []byte(id.String())); err != nil {
		return ID{}, errors.Join(fmt.Errorf("join: TCPStore: %w", err), id.Release())
	}
	return id, nil
}

// namesLoopback reports whether an address means this host on every host, so that all ranks are on
// it.
func namesLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
