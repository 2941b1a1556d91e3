package plantest

import "github.com/weftgo/weft/plan/spec"

// Place says where the operands of a rank lie in one region, as the plan wants them: in bytes, behind each other if
// they are apart.
func Place(f *spec.File, rank, chunk int) (in, out, size int) {
	ins, outs := f.Ranks[rank].Input*chunk, f.Ranks[rank].Output*chunk
	if f.InPlace {
		switch f.Collective {
		case spec.AllReduce, spec.AllToAll:
			return 0, 0, max(ins, outs)
		case spec.AllGather:
			return rank * ins, 0, outs
		case spec.ReduceScatter:
			return 0, rank * outs, ins
		}
	}
	return 0, ins, ins + outs
}
