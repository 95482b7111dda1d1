-- What the items of a dataset take together: a run copies all of them in one transaction.
alter table datasets add column item_bytes bigint not null default 0;
update datasets d set item_bytes = coalesce((select sum(i.bytes) from dataset_items i where i.dataset_id = d.id), 0);
