package collective

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/tuning"
	"github.com/weftgo/weft/internal/tuningfile"
)

// profile names the machine in tables of package tuning. It is collective: ranks share a GPU if any two do,
// and GPUs of several kinds have the profile of that of the lowest rank. own is an error of this rank's, with
// which the others must not be left alone.
func profile(ctx context.Context, comm *weft.Comm, op string) (name string, own, err error) {
	if comm.Device() == nil || betweenGPUs(comm) {
		return tuning.SharedMemory, nil, nil
	}
	m, own, err := tuningfile.MachineOf(ctx, comm, op)
	return m.Profile(), own, err
}

// tuned finds the table of the group's profile, which is the same on all ranks or refused on all. It is
// collective.
func tuned(ctx context.Context, comm *weft.Comm, op, file string) (name string, t *tuning.Table, err error) {
	name, own, err := profile(ctx, comm, op)
	if err != nil {
		return "", nil, err
	}
	t, found, err := tuning.Find(file, name)
	says := fmt.Sprintf("tuning profile %s, the library's table", name)
	if found {
		says = fmt.Sprintf("tuning profile %s, table %s of %s", name, t.Digest(), t.Date)
	}
	return name, t, comm.Operations().VerifySame(ctx, op, says, errors.Join(own, err))
}
