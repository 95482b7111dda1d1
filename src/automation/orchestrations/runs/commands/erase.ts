import { z } from 'zod'
import type { Redaction } from '#control/events/redact.ts'
import { sumCounts, type TurnContentEraser } from '#control/retention/erasure.ts'
import { isObject } from '#core/base/exact-json.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { runDrivers } from '../engine/driver.ts'
import { runKind } from '../model.ts'

type Data = Record<string, unknown>

/**
 * Erases the content of turns from the node executions that they served, from the outcomes of their runs and from runs
 * seeded with these outcomes; first from the records of drivers. Derived values in other nodes and in the state are not
 * erased.
 */
export const runContent: TurnContentEraser = {
  async erase(tx, turns) {
    const driven = []
    for (const { content } of runDrivers.all()) driven.push(await content.erase(tx, turns))
    const erased = await eraseNodes(
      tx,
      turns.map(({ id }) => id),
    )
    const redaction = redactionOf(
      runKind.name,
      erased.map(({ run_id, node_id }) => [run_id, node_id]),
      withoutNodes,
    )
    return {
      counts: sumCounts(...driven.map(({ counts }) => counts), { orchestration_runs: redaction.ids.length }),
      events: [...driven.flatMap(({ events }) => events), redaction],
    }
  },
}

/**
 * Returns the redaction of events of records, some parts of which are erased.
 * @param erased record and key of each part
 */
export function redactionOf(
  resource_type: string,
  erased: readonly (readonly [id: string, key: string])[],
  withoutParts: (data: Data, keys: ReadonlySet<string>) => Data,
): Redaction {
  const keys = new Map<string, Set<string>>()
  for (const [id, key] of erased) keys.set(id, (keys.get(id) ?? new Set()).add(key))
  const without = (data: Data): Data => withoutParts(data, keys.get(data.id as string) ?? new Set())
  return { resource_type, ids: [...keys.keys()], without }
}

/** Returns an object with the values of some keys replaced by null; other values unchanged. */
export const withNulledKeys = (values: unknown, keys: ReadonlySet<string>): unknown =>
  isObject(values)
    ? Object.fromEntries(Object.entries(values).map(([key, value]) => [key, keys.has(key) ? null : value]))
    : values

/** Returns a run, as an event contains it, without the content of some nodes. */
function withoutNodes(data: Data, nodes: ReadonlySet<string>): Data {
  const { node_executions, state, artifacts, output } = data
  return {
    ...data,
    ...(Array.isArray(node_executions)
      ? {
          node_executions: node_executions.map(execution =>
            nodes.has(execution.node_id) ? { ...execution, input: null, output: null } : execution,
          ),
        }
      : {}),
    ...(isObject(state) ? { state: { ...state, nodes: withNulledKeys(state.nodes, nodes) } } : {}),
    ...(artifacts === undefined ? {} : { artifacts: withNulledKeys(artifacts, nodes) }),
    ...(output === undefined ? {} : { output: withNulledKeys(output, nodes) }),
  }
}

const node = sql.type(z.strictObject({ run_id: z.string(), node_id: z.string() }))

/**
 * Erases content of node executions and runs. By orchestration_node_executions_generation, orchestration_runs_retry and
 * primary keys.
 */
async function eraseNodes(db: Queryable, generationIds: readonly string[]) {
  const turns = sql.array([...generationIds], 'text')
  // Lock order of an advance: the run before its node executions.
  await db.query(voidStatement`
    with recursive chain as (
      select run_id as id from orchestration_node_executions where generation_id = any(${turns})
      union select r.id from chain h join orchestration_runs r on r.retry_of_run_id = h.id)
    select from orchestration_runs where id in (select id from chain) order by id for update`)
  return db.any(node`
    with recursive executed as (
      select run_id, node_id from orchestration_node_executions where generation_id = any(${turns})
    ), affected as (
      -- Of several attempts, the run keeps the outcome of the completed one.
      select run_id, node_id from orchestration_node_executions
      where generation_id = any(${turns}) and status = 'completed' and error is null
      union
      select r.id, c.node_id from affected c join orchestration_runs r on r.retry_of_run_id = c.run_id
      where not exists (
        select from orchestration_node_executions x
        where x.run_id = r.id and x.node_id = c.node_id and x.status <> 'skipped')
    ), attempts as (
      update orchestration_node_executions set input = null, output = null where generation_id = any(${turns})
    ), runs as (
      update orchestration_runs r set updated_at = now(), revision = revision + 1,
        outcomes = (
          select coalesce(json_object_agg(o.key, case when c.node_id is null then o.value
            else json_build_object('artifact', null, 'label', o.value -> 'label', 'through', o.value -> 'through') end
            order by o.place), '{}')
          from json_each(r.outcomes) with ordinality as o (key, value, place)
          left join affected c on c.run_id = r.id and c.node_id = o.key),
        output = (
          select json_object_agg(o.key, case when c.node_id is null then o.value end order by o.place)
          from json_each(r.output) with ordinality as o (key, value, place)
          left join affected c on c.run_id = r.id and c.node_id = o.key)
      where r.id in (select run_id from affected)
    )
    select run_id, node_id from executed union select run_id, node_id from affected`)
}
