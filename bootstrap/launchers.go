package bootstrap

import (
	"net"
	"strconv"
	"strings"
)

func detectWeft(v *variables, e *Environment) bool {
	if !v.has("WEFT_RANK") {
		return false
	}
	v.require("WEFT", "WEFT_SIZE")
	e.Rank, e.Size, e.ended = v.number("WEFT_RANK"), v.numberOr("WEFT_SIZE", 1), v.text(EndedVariable)
	if namesLoopback(withPort(v.text("WEFT_ADDRESS"), DefaultPort)) {
		e.LocalRank, e.LocalSize = e.Rank, e.Size
	}
	return true
}

// detectTorchrun also takes the same variables set by hand, or by Kubeflow. If torchrun's agent
// keeps a TCPStore, that is the meeting point. Else MASTER_PORT has no listener yet, and rank 0
// listens there.
func detectTorchrun(v *variables, e *Environment) bool {
	if !v.has("RANK", "WORLD_SIZE") {
		return false
	}
	v.require("torchrun", "MASTER_ADDR", "MASTER_PORT")
	e.Rank, e.Size = v.number("RANK"), v.number("WORLD_SIZE")
	e.LocalRank, e.LocalSize = v.numberOr("LOCAL_RANK", 0), v.numberOr("LOCAL_WORLD_SIZE", 0)
	e.Address = net.JoinHostPort(strings.Trim(v.text("MASTER_ADDR"), "[]"), v.text("MASTER_PORT"))
	e.Store = strings.EqualFold(v.text("TORCHELASTIC_USE_AGENT_STORE"), "true")
	for _, part := range []string{v.text("TORCHELASTIC_RUN_ID"), v.text("TORCHELASTIC_RESTART_COUNT")} {
		if part != "" {
			e.Prefix += part + "/"
		}
	}
	return true
}

func detectOpenMPI(v *variables, e *Environment) bool {
	const prefix = "OMPI_COMM_WORLD_"
	if !v.has(prefix + "RANK") {
		return false
	}
	v.require("Open MPI", prefix+"SIZE")
	e.Rank, e.Size = v.number(prefix+"RANK"), v.numberOr(prefix+"SIZE", 1)
	e.LocalRank, e.LocalSize = v.numberOr(prefix+"LOCAL_RANK", 0), v.numberOr(prefix+"LOCAL_SIZE", 0)
	if job := v.text("PMIX_NAMESPACE"); job != "" && e.LocalSize == e.Size {
		e.Address = onThisHost(job)
	}
	return true
}

// detectMPICH takes any launcher that speaks PMI-1, through which rank 0 can publish its address.
func detectMPICH(v *variables, e *Environment) bool {
	if !v.has("PMI_RANK") {
		return false
	}
	v.require("MPICH", "PMI_SIZE")
	e.Rank, e.Size = v.number("PMI_RANK"), v.numberOr("PMI_SIZE", 1)
	e.LocalRank, e.LocalSize = v.numberOr("MPI_LOCALRANKID", 0), v.numberOr("MPI_LOCALNRANKS", 0)
	e.pmi = v.text("PMI_FD")
	return true
}

// detectKubernetes takes pods of a LeaderWorkerSet, whose leader is rank 0, and of an indexed job,
// whose size and service name the user sets.
func detectKubernetes(v *variables, e *Environment) bool {
	switch {
	case v.has("LWS_WORKER_INDEX"):
		v.require("Kubernetes", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS")
		e.Rank, e.Size = v.number("LWS_WORKER_INDEX"), v.numberOr("LWS_GROUP_SIZE", 1)
		if leader := v.text("LWS_LEADER_ADDRESS"); leader != "" {
			e.Address = withPort(leader, DefaultPort)
		}
		return true
	case v.has("JOB_COMPLETION_INDEX"):
		v.require("Kubernetes", "WEFT_SIZE")
		e.Rank, e.Size = v.number("JOB_COMPLETION_INDEX"), v.numberOr("WEFT_SIZE", 1)
		return true
	default:
		return false
	}
}

// detectSlurm takes tasks of a step. The script of a batch job has a SLURM_PROCID as well, but no
// step.
//
// The daemons of Open MPI and MPICH are themselves tasks of a step and hand its variables down to
// the ranks they start. Their step has another number of tasks than the job has ranks: then they
// are the launcher.
func detectSlurm(v *variables, e *Environment) bool {
	if !v.has("SLURM_PROCID") || !v.has("SLURM_STEP_ID") && !v.has("SLURM_STEP_NODELIST") {
		return false
	}
	tasks := "SLURM_STEP_NUM_TASKS"
	if !v.has(tasks) {
		tasks = "SLURM_NTASKS"
	}
	for _, inner := range []string{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} {
		if v.has(inner) && v.text(inner) != v.text(tasks) {
			return false
		}
	}
	v.require("Slurm", tasks)
	e.Rank, e.Size = v.number("SLURM_PROCID"), v.numberOr(tasks, 1)
	e.LocalRank, e.LocalSize = v.numberOr("SLURM_LOCALID", 0), slurmLocalSize(v)

	nodes, err := expandHostlist(v.text("SLURM_STEP_NODELIST"))
	if err != nil {
		v.fail("SLURM_STEP_NODELIST: " + err.Error())
	}
	job := v.text("SLURM_JOB_ID") + "." + v.text("SLURM_STEP_ID")
	switch port := strconv.Itoa(derivedPort(job)); {
	case len(nodes) == 1:
		e.Address = onThisHost(job)
		if e.LocalSize == 0 {
			e.LocalSize = e.Size
		}
	case len(nodes) > 1:
		e.Address = net.JoinHostPort(nodes[0], port) // where task 0 runs
	case v.has("SLURM_LAUNCH_NODE_IPADDR"):
		e.Address = net.JoinHostPort(v.text("SLURM_LAUNCH_NODE_IPADDR"), port)
	}
	return true
}

// slurmLocalSize is the number of tasks on this node, 0 if Slurm does not say.
func slurmLocalSize(v *variables) int {
	for _, name := range []string{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"} {
		if !v.has(name) || !v.has("SLURM_NODEID") {
			continue
		}
		counts, err := expandCounts(v.text(name))
		if err != nil {
			v.fail(name + ": " + err.Error())
			return 0
		}
		if node := v.number("SLURM_NODEID"); node < len(counts) {
			return counts[node]
		}
	}
	return v.numberOr("SLURM_NTASKS_PER_NODE", 0)
}
