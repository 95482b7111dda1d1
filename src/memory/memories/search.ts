import { z } from 'zod'
import { MemoryResult, type SearchInput } from '../../content/knowledge/model.ts'
import { isPresent, SEARCH_ACTION, type SearchScope, type SearchSource } from '../../content/knowledge/sources.ts'
import { VECTOR_SOURCES } from '../../content/vectors/store.ts'
import { tagCondition } from '../../core/api/lists.ts'
import { allOf, equalsAny, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { reachOf } from '../../core/iam/authority.ts'
import { principalFacts } from '../../core/iam/caller.ts'
import { rowFilter } from '../../core/iam/row-filter.ts'
import { withinReach } from '../reach.ts'
import { areMost, storesOf } from '../stores/store-presence.ts'
import { currentCondition, ownerColumn } from './model.ts'

/** Memories that hold, as a source of searches: `t` is a memory, `s` its store. */

type Narrowing = {
  /** What is left of the stores; null leaves all. */
  stores: Fragment | null
  /** Policies leave all of them. */
  permitted: boolean
  /** What is left of their memories; null leaves all that hold. */
  memories: Fragment | null
  /** What is left of them by whose they are; null leaves all. */
  owners: ((owner: Fragment) => Fragment | null) | null
}

/** What the caller and the request leave; `none` when it is nothing. */
function narrowing({ caller, project }: SearchScope, request: SearchInput): Narrowing | 'none' {
  // Policies name the stores. Where they ask for tags, those of the memory have to be allowed as well as those of the store.
  const permitted = (tags: Fragment) =>
    rowFilter(
      caller.layers,
      { action: SEARCH_ACTION, type: 'memory_store', facts: principalFacts(caller), projectId: project ?? undefined },
      { project: sql.fragment`s.project_id`, id: sql.fragment`s.id`, tags },
    )
  const store = permitted(sql.fragment`s.tags`)
  if (store === false) return 'none'
  const own = permitted(sql.fragment`t.tags`)
  const asksForTags = JSON.stringify(own) !== JSON.stringify(store)
  const { memory_store_ids: ids, tags, actor_id } = request
  const reaches = [reachOf(caller), actor_id === undefined ? null : { actor_id }]
  const storeConditions = [
    store !== true && sql.fragment`(${store})`,
    isPresent(ids) && sql.fragment`s.id = any(${sql.array(ids, 'text')})`,
  ].filter(condition => !!condition)
  const memoryConditions = [
    asksForTags && typeof own !== 'boolean' && sql.fragment`(${own})`,
    isPresent(tags) &&
      sql.fragment`(${tagCondition(sql.fragment`t.tags`, tags) as Fragment} or ${tagCondition(sql.fragment`s.tags`, tags) as Fragment})`,
  ].filter(condition => !!condition)
  return {
    stores: storeConditions.length === 0 ? null : allOf(storeConditions),
    permitted: store === true,
    memories: memoryConditions.length === 0 ? null : allOf(memoryConditions),
    owners: reaches.every(reach => reach === null) ? null : owner => withinReach(owner, ...reaches),
  }
}

/** One project by equality, so that the indexes of memories that begin with it give their order. */
const inProjects = (column: Fragment, projects: readonly string[] | null): Fragment | null =>
  projects && equalsAny(column, projects)

/**
 * None of those whose time is over and that no sweep has seen yet, by memories_over. What ended otherwise has neither words
 * nor vectors.
 */
const notOver = (ref: Fragment, projects: readonly string[] | null): Fragment => sql.fragment`
  ${ref} not in (
    select o.id from memories o
    where ${allOf([inProjects(sql.fragment`o.project_id`, projects), sql.fragment`o.invalidated_at is null and o.expires_at <= now()`])})`

const SAMPLED = 100

const row = sql.type(
  z.object({ ...MemoryResult.shape, created_at: z.string(), updated_at: z.string() }) as z.ZodType<
    z.output<typeof MemoryResult>
  >,
)
const changed = sql.type(z.object({ id: z.string(), updated_at: z.string() }))

export const memorySource: SearchSource = {
  type: 'memory',
  number: VECTOR_SOURCES.memory,
  resource: 'memory_store',
  table: 'memories',
  container: 'memory_store_id',
  owner: ownerColumn(sql.fragment`c`),

  async visible(services, scope, request) {
    const narrowed = narrowing(scope, request)
    if (narrowed === 'none') return 'none'
    const known = scope.project === null ? null : await storesOf(services, scope.project)
    if (known?.any === false) return 'none'
    const { stores, memories, owners, permitted } = narrowed
    const projects = scope.project === null ? null : [scope.project]
    if (!stores && !memories && !owners) return { whole: true, filter: ({ ref }) => notOver(ref, projects) }
    const ids = isPresent(request.memory_store_ids) ? request.memory_store_ids : null
    return {
      whole: known !== null && permitted && !memories && areMost(known, ids),
      filter: ({ ref, container, owner }) =>
        allOf([
          notOver(ref, projects),
          owners?.(owner),
          stores &&
            sql.fragment`${container} in (
              select s.id from memory_stores s where ${allOf([inProjects(sql.fragment`s.project_id`, projects), stores])})`,
          memories &&
            sql.fragment`${ref} in (
              select t.id from memories t join memory_stores s on s.id = t.memory_store_id
              where ${allOf([currentCondition, inProjects(sql.fragment`t.project_id`, projects), memories])})`,
        ]),
    }
  },

  /** The newest memories, by memories_project. */
  sample: ({ projects, filter }) => sql.fragment`
    select c.tsv from memories c
    where ${allOf([
      sql.fragment`c.tsv is not null`,
      inProjects(sql.fragment`c.project_id`, projects),
      filter?.({
        ref: sql.fragment`c.id`,
        container: sql.fragment`c.memory_store_id`,
        owner: ownerColumn(sql.fragment`c`),
      }),
    ])}
    order by c.id desc limit ${SAMPLED}`,

  /** By the primary keys of both tables. */
  async read(db, scope, request, ids) {
    const rows = await select(db, scope, request, {
      where: sql.fragment`t.id = any(${sql.array([...ids], 'text')})`,
      order: sql.fragment``,
    })
    return new Map(rows.map(result => [result.memory_id, result]))
  },

  /** Of one store in the order of memories_store, read backwards. */
  async list(db, scope, request) {
    const ids = request.memory_store_ids ?? []
    const rows = await select(db, scope, request, {
      where: allOf([
        inProjects(sql.fragment`t.project_id`, scope.project === null ? null : [scope.project]),
        ids.length > 0 && equalsAny(sql.fragment`t.memory_store_id`, ids),
      ]),
      order: sql.fragment`order by t.created_at, t.id limit ${request.limit}`,
    })
    return [...rows]
  },

  async changedAt(db, ids) {
    const rows = await db.any(
      changed`select t.id, t.updated_at from memories t where t.id = any(${sql.array([...ids], 'text')})`,
    )
    return new Map(rows.map(({ id, updated_at }) => [id, new Date(updated_at)]))
  },
}

async function select(
  db: Queryable,
  scope: SearchScope,
  request: SearchInput,
  query: { where: Fragment; order: Fragment },
): Promise<readonly z.output<typeof MemoryResult>[]> {
  const narrowed = narrowing(scope, request)
  if (narrowed === 'none') return []
  return db.any(row`
    select 'memory' as source_type, t.content, t.project_id, t.tags, t.created_at, t.updated_at, t.id as memory_id,
      s.id as memory_store_id, s.name as memory_store_name, t.actor_id
    from memories t join memory_stores s on s.id = t.memory_store_id
    where ${allOf([
      query.where,
      currentCondition,
      narrowed.stores,
      narrowed.memories,
      narrowed.owners?.(ownerColumn(sql.fragment`t`)),
    ])} ${query.order}`)
}
