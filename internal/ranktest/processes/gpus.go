//go:build unix

package processes

import (
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
)

// GPUs say which ones the ranks of a test are on. It is a part of their commands' arguments.
type GPUs struct {
	Emulated bool
	Dir      string // of compiled kernels, where they are emulated
}

// JoinOnGPU is Join on a GPU. Ranks share GPUs where they are more: there are two emulated ones.
func (r *Rank) JoinOnGPU(id string, on GPUs, options ...weft.Option) (*weft.Comm, error) {
	if on.Emulated {
		g, err := ranktest.Emulate(cudatest.Config{
			Devices: 2, Attributes: map[cuda.Attribute]int{cuda.Multicast: 1},
		}, emulate.Options{Limit: time.Minute}, on.Dir)
		if err != nil {
			return nil, err
		}
		return r.Join(id, append(options, g.Options(r.Rank)...)...)
	}
	driver, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	return r.Join(id, append(options, weft.WithGPU(r.Rank%len(driver.Devices())))...)
}
