package gpu

import (
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/internal/thresholds"
)

// pullFormOf is that of a combine that reads rows where they are.
func pullFormOf(s *spec.Spec) pullForm {
	f := pullForm{"RANKS", s.Output}
	switch {
	case s.Layout.ByExpert():
		f.order = "EXACT"
	case s.Reduction == spec.PartialBySelection:
		f.order = "SELECTIONS"
	}
	return f
}

// dispatchFormOf is that of a dispatch through slots.
func dispatchFormOf(t *spec.Choice, s *spec.Spec) dispatchForm {
	f := dispatchForm{byExpert: s.Layout.ByExpert(), quantize: s.Quantize, kind: byFlag, units: t.DispatchUnits}
	if t.ValueDispatch {
		f.kind = byValue
	}
	f.gathers = f == gatherForm && s.MaxTokens == 1 && s.Payload == spec.Opaque && s.TopK == s.Experts
	return f
}

// fusedDispatchFormOf is that of calls that prepare, send and receive at once; they may have no other
// than the rest.
func fusedDispatchFormOf(t *spec.Choice, s *spec.Spec, ranks int) dispatchForm {
	f := dispatchFormOf(t, s)
	switch {
	case !t.ValueDispatch:
	case !spec.FewTokens(*s, ranks):
		f.kind = byMany
	case t.DispatchUnits == 1:
		f.kind = byFew
	}
	return f
}

// combineFormOf is that of a combine through slots.
func combineFormOf(t *spec.Choice, s *spec.Spec, ranks int) combineForm {
	f := combineForm{
		sums: spec.CombineSums(*s), bySelection: s.Reduction == spec.PartialBySelection,
		of: s.Output, kind: byValue,
	}
	ranks = max(ranks, thresholds.CombineRanks)
	switch {
	case !t.ValueCombine:
		f.kind, f.group = byFlag, 4
	case f.sums == spec.ExactSums || ranks > 4:
		f.group = 8
	case ranks > 2:
		f.group = 4
	default:
		f.group = 2
	}
	return f
}

// fusedCombineFormOf is that of calls that send and receive at once; they may have no other than the
// rest.
func fusedCombineFormOf(t *spec.Choice, s *spec.Spec, ranks int) combineForm {
	f := combineFormOf(t, s, ranks)
	if f.kind == byValue {
		f.kind = byMany
	}
	return f
}

// combineGroups is for how many groups of ranks a warp sends, one after another: SOURCES of
// slots_combine.cu in each.
func combineGroups(t *spec.Choice, s *spec.Spec, ranks int) int {
	sources := 1
	if !s.Layout.ByExpert() {
		switch combineFormOf(t, s, ranks).group {
		case 4:
			sources = 3
		case 8:
			sources = 4
		}
	}
	return spec.CeilDiv(ranks-1, sources)
}

func placeFormOf(s *spec.Spec, ranks int) placeForm {
	return placeForm{byRank: s.Layout == spec.TokenMajor, even: s.Experts+ranks <= mapBuckets && s.TopK%placeQuad == 0}
}
