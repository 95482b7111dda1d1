import { z } from 'zod'
import { VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { MemoryResult, type SearchInput } from '#content/knowledge/model.ts'
import { isPresent, SEARCH_ACTION, type SearchScope, type SearchSource } from '#content/knowledge/sources.ts'
import { tagCondition } from '#core/api/lists.ts'
import { allOf, equalsAny, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import { principalFacts } from '#core/iam/caller.ts'
import { rowFilter } from '#core/iam/row-filter.ts'
import { withinReach } from '../reach.ts'
import { areMajority, findStorePresence } from '../stores/store-presence.ts'
import { currentCondition, ownerColumn } from './model.ts'

/** Search source for current memories. Conditions use the aliases `t` for a memory and `s` for its store. */

type MemoryConditions = {
  /** Condition on stores; null for all. */
  stores: Fragment | null
  /** Whether policies allow all stores. */
  permitted: boolean
  /** Condition on memories; null for all current ones. */
  memories: Fragment | null
  /** Condition on owners; null for all. */
  owners: ((owner: Fragment) => Fragment | null) | null
}

/** Returns the conditions of caller and request, or `none` if they exclude all memories. */
function memoryConditions({ caller, project }: SearchScope, request: SearchInput): MemoryConditions | 'none' {
  // Policies apply to stores. Conditions on tags apply to the tags of the store and of the memory.
  const permitted = (tags: Fragment) =>
    rowFilter(
      caller.layers,
      { action: SEARCH_ACTION, type: 'memory_store', facts: principalFacts(caller), projectId: project ?? undefined },
      { project: sql.fragment`s.project_id`, id: sql.fragment`s.id`, tags },
    )
  const store = permitted(sql.fragment`s.tags`)
  if (store === false) return 'none'
  const own = permitted(sql.fragment`t.tags`)
  const dependsOnTags = JSON.stringify(own) !== JSON.stringify(store)
  const { memory_store_ids: ids, tags, actor_id } = request
  const reaches = [reachOf(caller), actor_id === undefined ? null : { actor_id }]
  const storeConditions = [
    store !== true && sql.fragment`(${store})`,
    isPresent(ids) && sql.fragment`s.id = any(${sql.array(ids, 'text')})`,
  ].filter(condition => !!condition)
  const tagConditions = [
    dependsOnTags && typeof own !== 'boolean' && sql.fragment`(${own})`,
    isPresent(tags) &&
      sql.fragment`(${tagCondition(sql.fragment`t.tags`, tags) as Fragment} or ${tagCondition(sql.fragment`s.tags`, tags) as Fragment})`,
  ].filter(condition => !!condition)
  return {
    stores: storeConditions.length === 0 ? null : allOf(storeConditions),
    permitted: store === true,
    memories: tagConditions.length === 0 ? null : allOf(tagConditions),
    owners: reaches.every(reach => reach === null) ? null : owner => withinReach(owner, ...reaches),
  }
}

/** Compares a single project by equality, so that indexes that start with it return rows in order. */
const inProjects = (column: Fragment, projects: readonly string[] | null): Fragment | null =>
  projects && equalsAny(column, projects)

/**
 * Condition that excludes expired memories that the sweep has not processed. Index memories_over. Invalidated memories
 * have neither words nor vectors.
 */
const isNotExpired = (ref: Fragment, projects: readonly string[] | null): Fragment => sql.fragment`
  ${ref} not in (
    select o.id from memories o
    where ${allOf([inProjects(sql.fragment`o.project_id`, projects), sql.fragment`o.invalidated_at is null and o.expires_at <= now()`])})`

const SAMPLE_SIZE = 100

const resultRow = sql.type(
  z.object({ ...MemoryResult.shape, created_at: z.string(), updated_at: z.string() }) as z.ZodType<
    z.output<typeof MemoryResult>
  >,
)
const changedAtRow = sql.type(z.object({ id: z.string(), updated_at: z.string() }))

export const memorySource: SearchSource = {
  type: 'memory',
  number: VECTOR_SOURCES.memory,
  resource: 'memory_store',
  table: 'memories',
  container: 'memory_store_id',
  owner: ownerColumn(sql.fragment`c`),

  async visible(services, scope, request) {
    const conditions = memoryConditions(scope, request)
    if (conditions === 'none') return 'none'
    const presence = scope.project === null ? null : await findStorePresence(services, scope.project)
    if (presence?.any === false) return 'none'
    const { stores, memories, owners, permitted } = conditions
    const projects = scope.project === null ? null : [scope.project]
    if (!stores && !memories && !owners) return { whole: true, filter: ({ ref }) => isNotExpired(ref, projects) }
    const ids = isPresent(request.memory_store_ids) ? request.memory_store_ids : null
    return {
      whole: presence !== null && permitted && !memories && areMajority(presence, ids),
      filter: ({ ref, container, owner }) =>
        allOf([
          isNotExpired(ref, projects),
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

  /** Newest memories. Index memories_project. */
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
    order by c.id desc limit ${SAMPLE_SIZE}`,

  /** Indexes: primary keys. */
  async read(db, scope, request, ids) {
    const rows = await selectResults(db, scope, request, {
      where: sql.fragment`t.id = any(${sql.array([...ids], 'text')})`,
      order: sql.fragment``,
    })
    return new Map(rows.map(result => [result.memory_id, result]))
  },

  /** Oldest first. Index memories_store for a single store, read backwards. */
  async list(db, scope, request) {
    const ids = request.memory_store_ids ?? []
    const rows = await selectResults(db, scope, request, {
      where: allOf([
        inProjects(sql.fragment`t.project_id`, scope.project === null ? null : [scope.project]),
        ids.length > 0 && equalsAny(sql.fragment`t.memory_store_id`, ids),
      ]),
      order: sql.fragment`order by t.created_at, t.id limit ${request.limit}`,
    })
    return [...rows]
  },

  async readChangedAt(db, ids) {
    const rows = await db.any(
      changedAtRow`select t.id, t.updated_at from memories t where t.id = any(${sql.array([...ids], 'text')})`,
    )
    return new Map(rows.map(({ id, updated_at }) => [id, new Date(updated_at)]))
  },
}

async function selectResults(
  db: Queryable,
  scope: SearchScope,
  request: SearchInput,
  query: { where: Fragment; order: Fragment },
): Promise<readonly z.output<typeof MemoryResult>[]> {
  const conditions = memoryConditions(scope, request)
  if (conditions === 'none') return []
  return db.any(resultRow`
    select 'memory' as source_type, t.content, t.project_id, t.tags, t.created_at, t.updated_at, t.id as memory_id,
      s.id as memory_store_id, s.name as memory_store_name, t.actor_id
    from memories t join memory_stores s on s.id = t.memory_store_id
    where ${allOf([
      query.where,
      currentCondition,
      conditions.stores,
      conditions.memories,
      conditions.owners?.(ownerColumn(sql.fragment`t`)),
    ])} ${query.order}`)
}
