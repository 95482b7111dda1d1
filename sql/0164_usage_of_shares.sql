-- Usage of agents that another project shares names no provider of that project.
alter table usage_events disable trigger usage_events_frozen;
update usage_events set ai_provider_id = null where publisher_project_id is not null and ai_provider_id is not null;
alter table usage_events enable trigger usage_events_frozen;

with gone as (
  delete from usage_rollups where publisher_project_id <> '' and meter_type = 'llm_tokens' returning *
)
insert into usage_rollups (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard,
  events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
select project_id, hour, meter_type, model, '', agent_id, source, publisher_project_id, component, unit, shard,
  sum(events), sum(quantity), sum(cost_usd), sum(input_tokens), sum(input_cost), sum(cached_tokens), sum(cached_cost),
  sum(cache_write_tokens), sum(cache_write_cost), sum(output_tokens), sum(output_cost), sum(reasoning_tokens)
from gone group by 1, 2, 3, 4, 6, 7, 8, 9, 10, 11;

update generations set routing = jsonb_set(jsonb_set(routing, '{route_id}', 'null'), '{attempts}', coalesce((
    select jsonb_agg(attempt || '{"ai_provider_id": null}' order by at)
    from jsonb_array_elements(routing -> 'attempts') with ordinality as a (attempt, at)), '[]'))
where publisher_project_id is not null and routing is not null;
