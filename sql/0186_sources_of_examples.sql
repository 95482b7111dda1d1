-- What items of datasets were copied from, and with them results of evals: a purge of an end user finds its copies. Loose: what
-- they name may be deleted long before.
alter table dataset_items
  add column source_conversation_id text,
  add column source_actor_id text;
alter table eval_results
  add column source_generation_id text,
  add column source_conversation_id text,
  add column source_actor_id text;

update dataset_items i set source_conversation_id = g.conversation_id, source_actor_id = g.actor_id
from generations g where g.id = i.source_generation_id;
update eval_results r set source_generation_id = i.source_generation_id, source_conversation_id = i.source_conversation_id,
  source_actor_id = i.source_actor_id
from dataset_items i where i.id = r.item_id and i.source_generation_id is not null;

create index dataset_items_source_conversation on dataset_items (source_conversation_id) where source_conversation_id is not null;
create index dataset_items_source_actor on dataset_items (source_actor_id) where source_actor_id is not null;
create index eval_results_source on eval_results (source_generation_id) where source_generation_id is not null;
create index eval_results_source_conversation on eval_results (source_conversation_id) where source_conversation_id is not null;
create index eval_results_source_actor on eval_results (source_actor_id) where source_actor_id is not null;
