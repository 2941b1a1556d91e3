package main

import _ "embed"

// The long texts of --help.
var (
	//go:embed help/bench_all.txt
	benchAllHelp string
	//go:embed help/bench_ep.txt
	benchEPHelp string
	//go:embed help/bench_link.txt
	benchLinkHelp string
	//go:embed help/bench.txt
	benchHelp string
	//go:embed help/bench_overlap.txt
	benchOverlapHelp string
	//go:embed help/bench_start.txt
	benchStartHelp string
	//go:embed help/compile.txt
	compileHelp string
	//go:embed help/completion.txt
	completionHelp string
	//go:embed help/doctor.txt
	doctorHelp string
	//go:embed help/root.txt
	rootHelp string
	//go:embed help/run.txt
	runHelp string
	//go:embed help/tune.txt
	tuneHelp string
)
