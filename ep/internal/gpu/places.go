package gpu

import (
	"encoding/binary"

	"github.com/weftgo/weft"
)

// Who keeps for whom at the ends of a link: the KEEPS_OURS and KEEPS_THEIRS of ports.cuh.
const keepsOurs, keepsTheirs = 1, 2

// places say where ranks are, and which of another host lands what a rank sends there, its keeper: the member of the
// same place on its host, by turns where that host has fewer. So all members of a host, and their cards, have as much
// to do, where hosts are alike. Masked ranks are left out: every mask makes new ones.
type places struct {
	host    []int   // of each rank; -1: it is masked
	members [][]int // of each host, in their order
	member  []int   // which of them a rank is
	rank    int     // this one
}

func placesOf(comm *weft.Comm) *places {
	n := comm.Size()
	p := &places{host: make([]int, n), members: make([][]int, n), member: make([]int, n), rank: comm.Rank()}
	for r := range n {
		p.host[r] = -1
		if comm.Masked(r) {
			continue
		}
		h := comm.Host(r)
		p.host[r], p.member[r] = h, len(p.members[h])
		p.members[h] = append(p.members[h], r)
	}
	return p
}

// keeper is the rank of a host that keeps for a rank of another.
func (p *places) keeper(rank, host int) int {
	all := p.members[host]
	return all[p.member[rank]%len(all)]
}

// role is that of the link between this rank and a peer of another host.
func (p *places) role(rank, peer int) (role uint32) {
	if p.host[rank] < 0 || p.host[peer] < 0 {
		return 0
	}
	if p.keeper(rank, p.host[peer]) == peer {
		role |= keepsOurs
	}
	if p.keeper(peer, p.host[rank]) == rank {
		role |= keepsTheirs
	}
	return role
}

// placeLists is how many lists kernels have of them: LISTS of ports_hosts.cuh.
const placeLists = 5

// words are the lists.
func (p *places) words() []byte {
	const none = 1<<32 - 1
	n := len(p.host)
	lists := make([]uint32, placeLists*n)
	host, size, member, keeper, near := lists[:n], lists[n:2*n], lists[2*n:3*n], lists[3*n:4*n], lists[4*n:]
	own := p.host[p.rank]
	for r, h := range p.host {
		host[r], keeper[r] = none, none
		if h < 0 {
			continue
		}
		host[r], size[r], member[r] = uint32(h), uint32(len(p.members[h])), uint32(p.member[r])
		if h == own {
			near[p.member[r]] = uint32(r)
		} else {
			keeper[r] = uint32(p.keeper(r, own))
		}
	}
	var raw []byte
	for _, w := range lists {
		raw = binary.LittleEndian.AppendUint32(raw, w)
	}
	return raw
}
