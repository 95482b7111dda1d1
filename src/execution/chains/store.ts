import { z } from 'zod'
import { newId } from '#core/base/ids.ts'
import { countStatement, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { GenerationRow } from '../generations/model.ts'
import { activeCondition, type ChainRow, chainKind, type LIMIT_SOURCES } from './model.ts'

/** Limit of a chain and its origin. */
export type ChainLimit = { limit: number; limit_source: (typeof LIMIT_SOURCES)[number] }

/**
 * Locks and returns the chain of a turn. A turn without a chain becomes the first of a new one. Uses the primary key or
 * chains_root_generation_id_key.
 */
export const lockChain = (
  db: Queryable,
  turn: Pick<GenerationRow, 'id' | 'project_id' | 'agent_id' | 'chain_id' | 'created_at'>,
  { limit, limit_source }: ChainLimit,
): Promise<ChainRow> =>
  turn.chain_id === null
    ? db.one(chainKind.sql`
        insert into chains as t (id, project_id, agent_id, root_generation_id, "limit", limit_source, last_generation_at)
        values (${newId(chainKind.prefix)}, ${turn.project_id}, ${turn.agent_id}, ${turn.id}, ${limit}, ${limit_source},
          ${turn.created_at}::timestamptz)
        on conflict (root_generation_id) do update set updated_at = now()
        returning ${chainKind.columns}`)
    : chainKind.lock(db, turn.chain_id)

/**
 * Returns the number of turns in a chain, whose row the caller has locked. The first turn carries the chain id only
 * after its first continuation. Uses generations_chain and the primary key.
 */
export const countMembers = (db: Queryable, { id, root_generation_id }: ChainRow): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*) as count from generations g where g.chain_id = ${id} or g.id = ${root_generation_id}`)

/** Updates a chain after a continuation or its refusal. */
export const writeChain = (
  db: Queryable,
  { id }: ChainRow,
  to: ChainLimit & { status: 'active' | 'budget_exhausted'; generation_count: number; continued: boolean },
) =>
  db.query(voidStatement`
    update chains set status = ${to.status}, generation_count = ${to.generation_count}, "limit" = ${to.limit},
      limit_source = ${to.limit_source}, updated_at = now(),
      last_generation_at = case when ${to.continued} then now() else last_generation_at end
    where id = ${id}`)

/** Marks a chain as stopped; the time of an earlier stop is kept. */
export const stopChain = (db: Queryable, id: string): Promise<ChainRow> =>
  db.one(chainKind.sql`
    update chains t set stopped_at = coalesce(t.stopped_at, now()),
      updated_at = case when t.stopped_at is null then now() else t.updated_at end
    where t.id = ${id} returning ${chainKind.columns}`)

/** Expires the chain of a turn whose approval has just expired, unless other work of the chain is unsettled. */
export const expireChain = (db: Queryable, generationId: string) =>
  db.query(voidStatement`
    update chains t set status = 'expired', updated_at = now()
    where t.id = (select g.chain_id from generations g where g.id = ${generationId}) and t.status = 'active' and not ${activeCondition}`)

const limitRow = sql.type(z.strictObject({ max_chain_generations: z.int().nullable() }))

/** Returns the current chain limit of a project; null for none. */
export const projectChainLimit = (db: Queryable, id: string): Promise<number | null> =>
  db.maybeOneFirst(limitRow`select max_chain_generations from projects where id = ${id}`)

/** Whether the chain of a turn has a newer turn since: its limit counts all turns. Uses the primary key. */
export const isTurnOfLiveChain = ({ chain_id }: { chain_id: Fragment }, since: Fragment): Fragment =>
  sql.fragment`exists (select from chains c where c.id = ${chain_id} and c.last_generation_at >= ${since})`
