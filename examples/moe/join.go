package main

import (
	"context"
	"errors"
	"os"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cuda"
)

// joinGPUs makes a communicator of the same ranks as comm, each bound to a GPU. Collectives and
// this program's own memory are the host's, so there are two.
func joinGPUs(ctx context.Context, comm *weft.Comm, options ...weft.Option) (*weft.Comm, error) {
	var text []byte
	if comm.Rank() == 0 {
		id, err := bootstrap.NewID(bootstrap.OnLoopback())
		if err != nil {
			return nil, err
		}
		text = []byte(id.String())
	}
	texts, err := comm.Operations().GatherNotes(ctx, "join GPUs", text)
	if err != nil {
		return nil, err
	}
	id, err := bootstrap.ParseID(string(texts[0]))
	if err != nil {
		return nil, err
	}
	meeting, err := id.Dial(ctx, comm.Rank(), comm.Size())
	if err != nil {
		return nil, err
	}
	return weft.Join(ctx, append(options, weft.WithBootstrap(meeting))...)
}

// joinOwnGPU is joinGPUs for a process: the first rank of the host takes the first GPU, and so on.
// Where there are more ranks than GPUs they share.
func joinOwnGPU(ctx context.Context, comm *weft.Comm) (*weft.Comm, error) {
	env, err := bootstrap.Detect(os.Getenv)
	if err != nil {
		return nil, err
	}
	driver, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	gpus := len(driver.Devices())
	if gpus == 0 {
		return nil, errors.New("this process sees no GPU")
	}
	return joinGPUs(ctx, comm, weft.WithGPU(env.LocalRank%gpus))
}
