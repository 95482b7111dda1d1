-- Results of a run in the order of its dataset: their ids are drawn in that order when the run begins.
drop index eval_results_done;
create index eval_results_done on eval_results (eval_run_id, id) where state = 'done';
