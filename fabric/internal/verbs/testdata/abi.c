// Prints what a C compiler makes of the structs and constants of libibverbs and libmlx5 that package verbs knows.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(s) printf("size " #s " %zu\n", sizeof(struct s))
#define OFFSET(s, f) printf("offset " #s "." #f " %zu\n", offsetof(struct s, f))
#define VALUE(v) printf("value " #v " %llu\n", (unsigned long long)(v))

int main(void) {
	SIZE(ibv_gid_entry);
	SIZE(ibv_qp_cap);
	SIZE(ibv_qp_init_attr);
	SIZE(ibv_global_route);
	SIZE(ibv_ah_attr);
	SIZE(ibv_qp_attr);
	OFFSET(ibv_device, name);
	OFFSET(ibv_device, dev_name);
	OFFSET(ibv_device, dev_path);
	OFFSET(ibv_device, ibdev_path);
	OFFSET(ibv_port_attr, state);
	OFFSET(ibv_port_attr, active_mtu);
	OFFSET(ibv_port_attr, gid_tbl_len);
	OFFSET(ibv_port_attr, lid);
	OFFSET(ibv_port_attr, link_layer);
	OFFSET(ibv_gid_entry, gid);
	OFFSET(ibv_gid_entry, gid_index);
	OFFSET(ibv_gid_entry, port_num);
	OFFSET(ibv_gid_entry, gid_type);
	OFFSET(ibv_mr, lkey);
	OFFSET(ibv_mr, rkey);
	OFFSET(ibv_qp_cap, max_send_wr);
	OFFSET(ibv_qp_cap, max_recv_wr);
	OFFSET(ibv_qp_cap, max_send_sge);
	OFFSET(ibv_qp_cap, max_recv_sge);
	OFFSET(ibv_qp_cap, max_inline_data);
	OFFSET(ibv_qp_init_attr, send_cq);
	OFFSET(ibv_qp_init_attr, recv_cq);
	OFFSET(ibv_qp_init_attr, srq);
	OFFSET(ibv_qp_init_attr, cap);
	OFFSET(ibv_qp_init_attr, qp_type);
	OFFSET(ibv_qp_init_attr, sq_sig_all);
	OFFSET(ibv_qp, qp_num);
	OFFSET(ibv_global_route, dgid);
	OFFSET(ibv_global_route, flow_label);
	OFFSET(ibv_global_route, sgid_index);
	OFFSET(ibv_global_route, hop_limit);
	OFFSET(ibv_global_route, traffic_class);
	OFFSET(ibv_ah_attr, grh);
	OFFSET(ibv_ah_attr, dlid);
	OFFSET(ibv_ah_attr, sl);
	OFFSET(ibv_ah_attr, is_global);
	OFFSET(ibv_ah_attr, port_num);
	OFFSET(ibv_qp_attr, qp_state);
	OFFSET(ibv_qp_attr, path_mtu);
	OFFSET(ibv_qp_attr, rq_psn);
	OFFSET(ibv_qp_attr, sq_psn);
	OFFSET(ibv_qp_attr, dest_qp_num);
	OFFSET(ibv_qp_attr, qp_access_flags);
	OFFSET(ibv_qp_attr, ah_attr);
	OFFSET(ibv_qp_attr, pkey_index);
	OFFSET(ibv_qp_attr, max_rd_atomic);
	OFFSET(ibv_qp_attr, max_dest_rd_atomic);
	OFFSET(ibv_qp_attr, min_rnr_timer);
	OFFSET(ibv_qp_attr, port_num);
	OFFSET(ibv_qp_attr, timeout);
	OFFSET(ibv_qp_attr, retry_cnt);
	OFFSET(ibv_qp_attr, rnr_retry);
	OFFSET(mlx5dv_qp, dbrec);
	OFFSET(mlx5dv_qp, sq.buf);
	OFFSET(mlx5dv_qp, sq.wqe_cnt);
	OFFSET(mlx5dv_qp, sq.stride);
	OFFSET(mlx5dv_qp, bf.reg);
	OFFSET(mlx5dv_qp, bf.size);
	OFFSET(mlx5dv_qp, comp_mask);
	OFFSET(mlx5dv_cq, buf);
	OFFSET(mlx5dv_cq, dbrec);
	OFFSET(mlx5dv_cq, cqe_cnt);
	OFFSET(mlx5dv_cq, cqe_size);
	OFFSET(mlx5dv_cq, cqn);
	OFFSET(mlx5dv_cq, comp_mask);
	OFFSET(mlx5dv_obj, qp.in);
	OFFSET(mlx5dv_obj, qp.out);
	OFFSET(mlx5dv_obj, cq.in);
	OFFSET(mlx5dv_obj, cq.out);
	VALUE(MLX5DV_OBJ_QP);
	VALUE(MLX5DV_OBJ_CQ);
	VALUE(IBV_QPT_RC);
	VALUE(IBV_QPS_INIT);
	VALUE(IBV_QPS_RTR);
	VALUE(IBV_QPS_RTS);
	VALUE(IBV_QP_STATE);
	VALUE(IBV_QP_ACCESS_FLAGS);
	VALUE(IBV_QP_PKEY_INDEX);
	VALUE(IBV_QP_PORT);
	VALUE(IBV_QP_AV);
	VALUE(IBV_QP_PATH_MTU);
	VALUE(IBV_QP_TIMEOUT);
	VALUE(IBV_QP_RETRY_CNT);
	VALUE(IBV_QP_RNR_RETRY);
	VALUE(IBV_QP_RQ_PSN);
	VALUE(IBV_QP_MAX_QP_RD_ATOMIC);
	VALUE(IBV_QP_MIN_RNR_TIMER);
	VALUE(IBV_QP_SQ_PSN);
	VALUE(IBV_QP_MAX_DEST_RD_ATOMIC);
	VALUE(IBV_QP_DEST_QPN);
	VALUE(IBV_ACCESS_LOCAL_WRITE);
	VALUE(IBV_ACCESS_REMOTE_WRITE);
	VALUE(IBV_ACCESS_REMOTE_ATOMIC);
	VALUE(IBV_PORT_ACTIVE);
	VALUE(IBV_LINK_LAYER_INFINIBAND);
	VALUE(IBV_LINK_LAYER_ETHERNET);
	VALUE(IBV_GID_TYPE_IB);
	VALUE(IBV_GID_TYPE_ROCE_V1);
	VALUE(IBV_GID_TYPE_ROCE_V2);
	VALUE(IBV_MTU_256);
	VALUE(IBV_MTU_4096);
	return 0;
}
