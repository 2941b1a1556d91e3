package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write makes the results of a run.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	logs := t.TempDir()
	if err := os.Mkdir(filepath.Join(logs, "steps"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(logs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return logs
}

const doctor = `{"weft":"devel","gpu":{"driver":"580.159"},"cuda":{"version":"13.0","devices":[` +
	`{"name":"H200","arch":"sm_90a"},{"name":"H200","arch":"sm_90a"}]}}`

func ran(command string) string {
	return `{"part":"x","seconds":1,"result":"passed","passed":0,"note":"","what":"` + command + `","gpus":4}` + "\n"
}

// Each kind of result has its table, with its command, the figures in the right cells, and what they miss.
func TestTables(t *testing.T) {
	logs := write(t, map[string]string{
		"doctor.json":    doctor,
		"results.jsonl":  `{"date":"2026-11-27","build":"abc1234","flags":""}` + "\n",
		"steps/ep-few-4": ran("weft bench ep --device gpu"),
		"ep-few-4.json": `{"op":"dispatch","engine":"gpu","contract":"rank-major bf16","ranks":4,"gpus":4,"tokens":8,` +
			`"p50_us":3.5,"verified":true}
{"op":"dispatch","engine":"gpu","contract":"rank-major bf16","ranks":4,"gpus":4,"tokens":1,"p50_us":3.08,` +
			`"floor_us":0.114,"kernel_us":7.8,"cold_us":4.71,"verified":true}
{"op":"combine","engine":"gpu","contract":"rank-major bf16","ranks":4,"gpus":4,"tokens":8,"p50_us":3.5,"verified":false}
{"op":"all-to-all","engine":"peer","contract":"NCCL all_to_all_single","ranks":4,"wire_bytes":39424,"p50_us":14.3,` +
			`"verified":true}
{"op":"all-to-all","engine":"peer","contract":"another","tokens":8,"p50_us":1,"source":"a paper"}
{"op":"dispatch","engine":"gpu","contract":"cut sho`,
		"steps/ep-many-4": ran("weft bench ep --device gpu --mode ht"),
		"ep-many-4.json": `{"op":"dispatch","engine":"gpu","contract":"token-major partial bf16","ranks":4,"gpus":4,` +
			`"tokens":4096,"sms":24,"p50_us":506.4,"gbps":314.2,"verified":true}` + "\n",
		"steps/allreduce-4": ran("weft bench allreduce --device gpu"),
		"allreduce-4.json": `{"op":"allreduce","engine":"gpu","ranks":4,"bytes":1073741824,"p50_us":5370,"busbw":300}
{"op":"allreduce","engine":"gpu","ranks":4,"bytes":1024,"p50_us":2.1}
{"op":"allreduce","engine":"nccl","ranks":4,"bytes":1024,"p50_us":16.4}` + "\n",
		"steps/allreduce-windows-4": ran("weft bench allreduce --device gpu --operand window"),
		"allreduce-windows-4.json": `{"op":"allreduce","engine":"gpu","ranks":4,"bytes":1073741824,"operand":"window",` +
			`"p50_us":4983,"busbw":351}` + "\n",
		"steps/link-4": ran("weft bench link"),
		"link-4.json": `{"op":"link","way":"store","pattern":"all-to-all","gpus":4,"sms":8,"gbps":325.2}
{"op":"link","way":"empty","gpus":4,"p50_us":0.52}
{"op":"ceiling","gbps":352}` + "\n",
		"steps/plans-4": ran("BenchmarkOnGPUs"),
		"plans-4.log": "BenchmarkOnGPUs/packets/1KiB/2-64         \t       1\t     1.91 us/native\t     2.30 us/plan\n" +
			"BenchmarkRealPlansOnGPUs/allgather.json/1024-64 \t 1 \t 4.53 us/plan \t 2.4 us/all-gather-direct\n",
		"steps/tune-ep-4": ran("weft tune ep"),
		"tune-ep-4.json":  "{\n \"rows\": []\n}\n",
	})
	text, err := tables(logs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# 2 x H200, driver 580.159, 2026-11-27, at abc1234\n",
		"`weft bench ep --device gpu`\n\n| contract | operation |  | 1 | 8 |\n|---|---|---|---|---|\n" +
			"| rank-major bf16 | dispatch | Weft | 3.08 | 3.50 |\n| rank-major bf16 | dispatch | target | 2.8 | 3.6 |\n" +
			"| rank-major bf16 | dispatch | links alone | 0.11 |  |\n" +
			"| rank-major bf16 | combine | Weft |  | **wrong** |\n| rank-major bf16 | combine | target |  | 3.9 |\n\n" +
			"Missed targets: rank-major bf16 dispatch of 1: 3.08, asked 2.8 (10% more).\n",
		"| rank-major bf16 | dispatch | 7.80 | 4.71 |\n",
		"| us | 38.5 KB |\n|---|---|\n| NCCL all_to_all_single | 14.3 |\n",
		"| contract | operation | 24 SMs (GB/s) |\n|---|---|---|\n| token-major partial bf16 | dispatch | 506 (314) |\n",
		"dispatch with 24 SMs: 506, asked 478 (6% more)",
		"| bytes | allreduce | allreduce in windows | allreduce NCCL |\n|---|---|---|---|\n" +
			"| 1 KB | 2.10 |  | 16.4 |\n| 1 GB | 5370 (300) | 4983 (351) |  |\n\n" +
			"Missed targets: allreduce of 1 GB: 300 GB/s, asked 350 (14% less).\n",
		"| empty | 0.52 |\n",
		"| way | 8 |\n|---|---|\n| store | 325 |\n",
		"| packets/1KiB/2 | 2.30 | 1.91 |\n| allgather.json/1024 | 4.53 | 2.4 all-gather-direct |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// What is no folder of results, or has measured nothing, is told.
func TestNothing(t *testing.T) {
	if _, err := tables(t.TempDir()); err == nil {
		t.Error("an empty folder has tables")
	}
	files := map[string]string{
		"doctor.json": doctor, "results.jsonl": `{"date":"2026-11-27"}` + "\n", "steps/ep-suite-4": ran("-test.run A"),
	}
	if _, err := tables(write(t, files)); err == nil || !strings.Contains(err.Error(), "has measured anything") {
		t.Errorf("tests alone: %v", err)
	}
	files["steps/link-4"], files["link-4.json"] = ran("weft bench link"), "{}\nno JSON\n"
	if _, err := tables(write(t, files)); err == nil || !strings.Contains(err.Error(), "link-4.json: line 2") {
		t.Errorf("no JSON: %v", err)
	}
}
