// Command weft starts ranks, examines machines and measures.
//
//	weft run -n 4 ./program   start four ranks on this host
//	weft doctor               what this machine offers, and what it means
//	weft bench ep             measure expert parallelism, verified in the same run
//	weft bench link           measure the links between GPUs
//	weft bench start          measure how long ranks on GPUs take to start
//	weft tune ep              find out how its kernels are fastest on this machine
//	weft tune merge FILE...   put the results of several searches together
//	weft compile --out DIR    compile GPU kernels for machines that have no compiler
//	weft completion bash      shell completion
package main
