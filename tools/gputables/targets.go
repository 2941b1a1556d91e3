package main

import (
	"fmt"
	"slices"
	"strings"
)

// target is the most that an operation should take, in us, on machines of H100s or H200s.
type target struct {
	ranks    int
	contract string // the beginning of it; of a collective nothing
	op       string
	by       []int // tokens, or with many of them SMs, or bytes
	us       []float64
}

var (
	tokens = []int{1, 8, 32, 128, 256}
	sms    = []int{8, 12, 24, 96}
)

const kb, mb = 1 << 10, 1 << 20

// few and many tokens, then collectives. Those of many tokens are for 4096.
var (
	fewTargets = []target{
		{4, "rank-major", "dispatch", tokens, []float64{2.8, 3.6, 6.1, 17.8, 31.8}},
		{4, "rank-major", "combine", tokens, []float64{3.1, 3.9, 6.6, 17.5, 33.5}},
		{4, "expert-major partial", "dispatch", tokens, []float64{3.6, 4.6, 6.9, 20, 37}},
		{4, "expert-major partial", "combine", tokens, []float64{4.0, 5.0, 8, 20, 36}},
		{4, "expert-major exact fp8", "dispatch", tokens, []float64{4.0, 4.4, 6.0, 14, 25}},
		{4, "expert-major exact fp8", "combine", tokens, []float64{3.4, 5.2, 11.3, 37, 72}},
		{2, "rank-major", "dispatch", tokens, []float64{2.6, 2.9, 4.2, 7.9, 13.8}},
		{8, "expert-major exact fp8", "dispatch", []int{1, 128}, []float64{4, 18}},
		{8, "expert-major exact fp8", "combine", []int{1, 128}, []float64{4, 43}},
	}
	manyTargets = []target{
		{4, "token-major partial bf16", "dispatch", sms, []float64{530, 488, 478, 455}},
		{4, "token-major partial bf16", "combine", sms, []float64{575, 497, 488, 486}},
		{4, "token-major partial fp8", "dispatch", sms, []float64{300, 265, 255, 240}},
		{4, "token-major", "prepare", []int{24}, []float64{10}},
		{8, "token-major partial bf16", "dispatch", []int{24}, []float64{800}},
		{8, "token-major partial bf16", "combine", []int{24}, []float64{810}},
		{8, "token-major partial fp8", "dispatch", []int{24}, []float64{430}},
	}
	small             = []int{8 * kb, mb}
	collectiveTargets = []target{
		{4, "", "allreduce", []int{kb, 8 * kb, 64 * kb, 256 * kb, mb, 8 * mb, 16 * mb, 64 * mb}, []float64{
			2.2, 2.4, 3.0, 4.7, 8.2, 40, 79, 300,
		}},
		{2, "", "allreduce", []int{kb, 8 * kb, 64 * kb, 256 * kb, mb}, []float64{2.0, 2.05, 2.4, 3.15, 5.4}},
		{4, "", "allgather", small, []float64{2.5, 5.5}},
		{4, "", "reducescatter", small, []float64{2.5, 5.5}},
		{4, "", "alltoall", small, []float64{2.5, 5.5}},
		{8, "", "allreduce", []int{kb, 64 * kb, mb, 64 * mb}, []float64{2.6, 4.0, 9.8, 350}},
	}
)

// of the collectives on 4 GPUs: the least bus bandwidth in GB/s from so many bytes on.
var least = map[string]struct {
	bytes int64
	gbps  float64
}{
	"allreduce": {1 << 30, 350}, "allgather": {256 * mb, 330}, "reducescatter": {256 * mb, 330},
	"alltoall": {256 * mb, 330},
}

// asked is the target of a row among these, of so many tokens, SMs or bytes, or 0.
func (r row) asked(of []target, by int) float64 {
	for _, t := range of {
		if t.ranks != r.Ranks || t.op != r.Op || !strings.HasPrefix(r.Contract, t.contract) {
			continue
		}
		if i := slices.Index(t.by, by); i >= 0 {
			return t.us[i]
		}
	}
	return 0
}

// over says which target a figure misses, if there is one.
func over(r row) []string {
	if r.Engine != "gpu" {
		return nil
	}
	list, by, what := fewTargets, r.Tokens, fmt.Sprintf("%s %s of %d", r.Contract, r.Op, r.Tokens)
	switch {
	case r.Contract == "":
		list, by, what = collectiveTargets, int(r.Bytes), r.Op+" of "+size(r.Bytes)
	case strings.HasPrefix(r.Contract, "token-major"):
		if r.Tokens != 4096 {
			return nil
		}
		list, by, what = manyTargets, r.SMs, fmt.Sprintf("%s %s with %d SMs", r.Contract, r.Op, r.SMs)
	}
	if r.Operand == "window" {
		what += " in windows"
	}
	if us := r.asked(list, by); us > 0 && r.P50 > us {
		return []string{fmt.Sprintf("%s: %s, asked %v (%.0f%% more)", what, r.us(r.P50), us, 100*(r.P50/us-1))}
	}
	if l, ok := least[r.Op]; ok && r.Contract == "" && r.Ranks == 4 && r.Bytes >= l.bytes && r.BusBW < l.gbps {
		return []string{fmt.Sprintf("%s: %.0f GB/s, asked %v (%.0f%% less)", what, r.BusBW, l.gbps, 100*(1-r.BusBW/l.gbps))}
	}
	return nil
}
