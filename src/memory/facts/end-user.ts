import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { allOf, type Fragment, sql, voidStatement } from '#core/db/sql.ts'
import type { EndUser } from '#core/iam/caller.ts'
import { currentCondition, type MemoryRow } from './model.ts'

/** Access of end users to the current facts that belong to them, in the stores that the agents of their token read. */

/** Select of the ids of the memory stores that agents read. Contributed by the module of agents. */
export const agentStores = extensionPoint<(agentIds: readonly string[]) => Fragment>({
  name: 'memory stores of agents',
  folder: 'memory/facts',
  description: 'Selects the memory stores that agents read',
})

/** Condition of the memories `t` of an end user. By memories_actor. */
const ownMemories = ({ actor_id, agent_ids }: EndUser): Fragment =>
  allOf([
    sql.fragment`t.actor_id = ${actor_id}`,
    currentCondition,
    sql.fragment`t.memory_store_id in (${agentStores.only()?.(agent_ids) ?? sql.fragment`select null::text`})`,
  ])

export const memoriesAccess: EndUserAccess = {
  scope: 'memories',
  rows: ownMemories,
  view: endUserView(
    ['id', 'content', 'created_at'],
    [
      'project_id',
      'memory_store_id',
      'source_type',
      'source_id',
      'actor_id',
      'metadata',
      'embedded',
      'expires_at',
      'invalidated_at',
      'superseded_by_memory_id',
      'tags',
      'updated_at',
    ],
  ),
}

export const memoryAccess: EndUserAccess<MemoryRow> = {
  scope: 'memories',
  owns: ({ id }, endUser, db) =>
    db.exists(voidStatement`select from memories t where t.id = ${id} and ${ownMemories(endUser)}`),
}
