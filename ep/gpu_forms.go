package ep

import "github.com/weftgo/weft/ep/internal/thresholds"

// pullFormOf is that of a combine that reads rows where they are.
func pullFormOf(s *Spec) pullForm {
	f := pullForm{"RANKS", s.Output}
	switch {
	case s.Layout.byExpert():
		f.order = "EXACT"
	case s.Reduction == PartialBySelection:
		f.order = "SELECTIONS"
	}
	return f
}

// dispatchFormOf is that of a dispatch through slots.
func dispatchFormOf(t *Choice, s *Spec) dispatchForm {
	f := dispatchForm{byExpert: s.Layout.byExpert(), quantize: s.Quantize, kind: byFlag, units: t.dispatchUnits}
	if t.valueDispatch {
		f.kind = byValue
	}
	f.gathers = f == gatherForm && s.MaxTokens == 1 && s.Payload == Opaque && s.TopK == s.Experts
	return f
}

// fusedDispatchFormOf is that of calls that prepare, send and receive at once; they may have no other
// than the rest.
func fusedDispatchFormOf(t *Choice, s *Spec, ranks int) dispatchForm {
	f := dispatchFormOf(t, s)
	switch {
	case !t.valueDispatch:
	case !few(*s, ranks):
		f.kind = byMany
	case t.dispatchUnits == 1:
		f.kind = byFew
	}
	return f
}

// combineFormOf is that of a combine through slots.
func combineFormOf(t *Choice, s *Spec, ranks int) combineForm {
	f := combineForm{sums: combineSums(*s), bySelection: s.Reduction == PartialBySelection, of: s.Output, kind: byValue}
	ranks = max(ranks, thresholds.CombineRanks)
	switch {
	case !t.valueCombine:
		f.kind, f.group = byFlag, 4
	case f.sums == exactSums || ranks > 4:
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
func fusedCombineFormOf(t *Choice, s *Spec, ranks int) combineForm {
	f := combineFormOf(t, s, ranks)
	if f.kind == byValue {
		f.kind = byMany
	}
	return f
}

// combineGroups is for how many groups of ranks a warp sends, one after another: SOURCES of
// kernels/combine.cu in each.
func combineGroups(t *Choice, s *Spec, ranks int) int {
	sources := 1
	if !s.Layout.byExpert() {
		switch combineFormOf(t, s, ranks).group {
		case 4:
			sources = 3
		case 8:
			sources = 4
		}
	}
	return CeilDiv(ranks-1, sources)
}

func placeFormOf(s *Spec, ranks int) placeForm {
	return placeForm{byRank: s.Layout == TokenMajor, even: s.Experts+ranks <= mapBuckets && s.TopK%placeQuad == 0}
}
