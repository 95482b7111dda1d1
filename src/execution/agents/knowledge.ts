import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { documentKind } from '#content/documents/model.ts'
import { SEARCH_ACTION as SEARCH } from '#content/knowledge/sources.ts'
import { Directory } from '#content/paths.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { refuseEndUserBound } from '#memory/reach.ts'

/** Knowledge of an agent: the sources searched before its turns, and the memory store that its turns may write to. */

const ids = (max: number) => z.array(z.string().min(1).max(255)).max(max)

const PLACEHOLDERS =
  'Placeholders `{actor_id}`, `{actor_external_id}` and `{session_id}` take the values of the turn; a filter without a value matches nothing.'

const UNSHARED = 'requires an agent with share_between_actors'

const sourceFields = {
  memory_store_ids: ids(50).optional().describe('Memory stores to search'),
  document_ids: ids(500).optional().describe('Documents to search'),
  document_paths: z
    .array(Directory)
    .max(50)
    .optional()
    .describe(`Directories or exact paths to search. ${PLACEHOLDERS}`),
  tags: z
    .record(z.string().min(1).max(128), z.string().max(256))
    .optional()
    .describe(
      `Tags that must all match, on a memory or its store or on a document. Searches memories and documents. ${PLACEHOLDERS}`,
    ),
  min_score: z.number().min(0).max(1).optional().describe('Least cosine similarity of semantic matches. Default 0.5.'),
  rrf_k: z.number().gt(0).max(1000).optional().describe('Constant of reciprocal rank fusion. Default KNOWLEDGE_RRF_K.'),
  recency_half_life_days: z
    .number()
    .min(0)
    .max(36_500)
    .optional()
    .describe(
      'Days after which the score of a memory is halved; 0 disables the decay. Default KNOWLEDGE_RECENCY_HALF_LIFE_DAYS.',
    ),
  limit: z.int().min(1).max(50).optional().describe('Maximum number of results for a turn. Default 5, at most 50.'),
}

const write_memory_scope = z
  .enum(['actor', 'store'])
  .optional()
  .describe(
    'Owner of the facts that turns write: `actor` — the end user of the turn; `store` — none, allowed only with share_between_actors. Default `actor`.',
  )

const write_memory_store_id = z
  .string()
  .min(1)
  .max(255)
  .nullable()
  .optional()
  .describe('Memory store that the `write_memory` tool of turns writes to')

/** Overrides of the agent's knowledge configuration for one turn. */
export const KnowledgeOverlay = z.strictObject({ ...sourceFields, write_memory_scope }).meta({ id: 'KnowledgeOverlay' })
export type KnowledgeOverlay = z.output<typeof KnowledgeOverlay>

/** Overrides of the agent's knowledge configuration for all turns of a session. */
export const SessionKnowledge = z
  .strictObject({ ...sourceFields, write_memory_scope, write_memory_store_id })
  .meta({ id: 'SessionKnowledgeConfig' })
export type SessionKnowledge = z.output<typeof SessionKnowledge>

export const KnowledgeConfig = z
  .strictObject({
    ...sourceFields,
    write_memory_scope,
    write_memory_store_id,
    share_between_actors: z
      .boolean()
      .optional()
      .describe('Whether turns read the facts of all end users instead of only their own. Default false.'),
  })
  .superRefine((config, context) => {
    if (config.write_memory_scope === 'store' && !config.share_between_actors)
      context.addIssue({ code: 'custom', path: ['write_memory_scope'], message: UNSHARED })
  })
  .meta({ id: 'KnowledgeConfig' })
export type KnowledgeConfig = z.output<typeof KnowledgeConfig>

/** Merges a configuration with an overlay: lists and tags are united, other fields of the overlay take precedence. */
export function mergedKnowledge<C extends SessionKnowledge>(config: C, overlay: SessionKnowledge | undefined): C {
  if (!overlay) return config
  const both = (name: 'memory_store_ids' | 'document_ids' | 'document_paths') => {
    const merged = [...new Set([...(config[name] ?? []), ...(overlay[name] ?? [])])]
    return merged.length > 0 ? { [name]: merged } : {}
  }
  const tags = { ...config.tags, ...overlay.tags }
  return {
    ...config,
    ...overlay,
    ...both('memory_store_ids'),
    ...both('document_ids'),
    ...both('document_paths'),
    ...(Object.keys(tags).length > 0 ? { tags } : {}),
  }
}

/** Values of the placeholders in a configuration. */
export type NamedStore = { actor_id: string | null; actor_external_id: string | null; session_id: string | null }

const PLACEHOLDER = /\{(actor_id|actor_external_id|session_id)\}/g

export const namesExternalId = ({ tags, document_paths }: SessionKnowledge): boolean =>
  [...Object.values(tags ?? {}), ...(document_paths ?? [])].some(text => text.includes('{actor_external_id}'))

/** Returns a text with its placeholders replaced, or null if the turn has no value for one of them. */
function filled(text: string, values: NamedStore): string | null {
  const names = [...text.matchAll(PLACEHOLDER)].map(([, name]) => values[name as keyof NamedStore])
  return names.includes(null) ? null : text.replace(PLACEHOLDER, (_, name: keyof NamedStore) => values[name] as string)
}

/**
 * Returns a path with its placeholders replaced, or null. A value with `/`, `*` or `?` would select another directory
 * and is refused.
 */
const filledPath = (path: string, values: NamedStore): string | null =>
  [...path.matchAll(PLACEHOLDER)].some(([, name]) => /[/*?]/.test(values[name as keyof NamedStore] ?? ''))
    ? null
    : filled(path, values)

/**
 * Returns the configuration that a turn searches, placeholders replaced, and which sources it covers. A filter whose
 * placeholder has no value matches nothing; null when nothing remains to search.
 */
export function searchedKnowledge(
  config: SessionKnowledge,
  values: NamedStore,
): { config: SessionKnowledge; memories: boolean; documents: boolean } | null {
  const pairs = Object.entries(config.tags ?? {})
  const tags = pairs.flatMap(([key, value]): [string, string][] => {
    const known = filled(value, values)
    return known === null ? [] : [[key, known]]
  })
  if (tags.length < pairs.length) return null
  const document_paths = config.document_paths?.map(path => filledPath(path, values)).filter(path => path !== null)
  const { memories, documents } = sourcesOf(config)
  const nowhere = !!config.document_paths?.length && !document_paths?.length
  if (!memories && nowhere) return null
  return {
    config: { ...config, ...(config.tags && { tags: Object.fromEntries(tags) }), document_paths },
    memories,
    documents: documents && !nowhere,
  }
}

const isTagged = ({ tags }: SessionKnowledge): boolean => Object.keys(tags ?? {}).length > 0

/**
 * Returns which sources a configuration searches. Memories are never searched unscoped, because a store may belong to
 * one end user.
 */
function sourcesOf(config: SessionKnowledge): { memories: boolean; documents: boolean } {
  const { memory_store_ids, document_ids, document_paths } = config
  const tagged = isTagged(config)
  const memories = !!memory_store_ids?.length || tagged
  const documents = !!document_ids?.length || !!document_paths?.length || tagged
  return { memories, documents: documents || !memories }
}

/** Whether no list of ids or paths restricts the documents that are searched; tags may. */
const readsAllDocuments = (config: SessionKnowledge): boolean =>
  sourcesOf(config).documents && !config.document_ids?.length && !config.document_paths?.length

type Checking = { tx: Queryable; allow: Context['allow'] }

const storeKind = (): Kind<any> => kinds.get('memory_store')

/**
 * Returns the rows of a project with the `given` and `known` ids.
 * @throws RESOURCE_NOT_FOUND for a missing `given` id
 */
async function loadReferenced(
  db: Queryable,
  kind: Kind<any>,
  projectId: string,
  { given = [], known = [] }: { given?: readonly string[]; known?: readonly string[] },
): Promise<KindRow[]> {
  const requested = [...new Set([...given, ...known])].filter(id => isIdOf(kind, id))
  const rows: readonly KindRow[] =
    requested.length === 0
      ? []
      : await db.any(kind.sql`
          select ${kind.columns} from ${sql.identifier([kind.table])} t
          where t.id = any(${sql.array(requested, 'text')}) and t.project_id = ${projectId}`)
  const found = new Set(rows.map(({ id }) => id))
  const missing = given.filter(id => !found.has(id))
  if (missing.length > 0) raise('RESOURCE_NOT_FOUND', { meta: { id: missing[0], missing } })
  return [...rows]
}

/** Whether a tag filter was removed or changed, or facts of all end users became readable. */
const isLoosened = (next: KnowledgeConfig, before: KnowledgeConfig): boolean =>
  Object.entries(before.tags ?? {}).some(([key, value]) => next.tags?.[key] !== value) ||
  (!!next.share_between_actors && !before.share_between_actors)

/**
 * Validates a knowledge configuration. Writing it must not give access to sources that the caller may not search, so
 * the caller needs permission for every source that was not searched before: for the added ones, and for all of them
 * when a filter is loosened. Ids must exist now; the resources may be deleted later.
 * @param given configuration in the request
 * @param next resulting configuration
 * @throws RESOURCE_NOT_FOUND, FORBIDDEN
 */
async function checkKnowledge(
  { tx, allow }: Checking,
  project_id: string,
  given: KnowledgeConfig,
  next: KnowledgeConfig,
  before: KnowledgeConfig | null,
): Promise<void> {
  const store = storeKind()
  const loosened = before !== null && isLoosened(next, before)
  const known = loosened ? null : before
  const all = loosened ? next : {}
  const stores = { given: given.memory_store_ids, known: all.memory_store_ids }
  for (const row of await loadReferenced(tx, store, project_id, stores))
    if (!known?.memory_store_ids?.includes(row.id)) allow(SEARCH, { kind: store, row })
  const documents = { given: given.document_ids, known: all.document_ids }
  for (const row of await loadReferenced(tx, documentKind, project_id, documents))
    if (!known?.document_ids?.includes(row.id)) allow(SEARCH, { kind: documentKind, row })
  for (const path of [...(given.document_paths ?? []), ...(all.document_paths ?? [])])
    if (!known?.document_paths?.includes(path)) allow(SEARCH, { kind: documentKind, project_id, path })
  const written = given.write_memory_store_id
  if (written != null)
    for (const row of await loadReferenced(tx, store, project_id, { given: [written] }))
      if (written !== before?.write_memory_store_id) allow('memories:CreateMemoryEntry', { kind: store, row })

  const retagged = loosened || !isDeepStrictEqual(next.tags ?? {}, before?.tags ?? {})
  const unlisted = !next.memory_store_ids?.length
  if (isTagged(next) && unlisted && (retagged || before?.memory_store_ids?.length))
    allow(SEARCH, { kind: store, project_id })
  if (readsAllDocuments(next) && (retagged || before === null || !readsAllDocuments(before)))
    allow(SEARCH, { kind: documentKind, project_id })
}

/**
 * Validates the knowledge configuration of an agent.
 * @throws RESOURCE_NOT_FOUND; FORBIDDEN, also when work for one end user would let the agent read the facts of all
 */
export function checkAgentKnowledge(
  checking: Checking & { caller: Pick<Caller, 'bounds'> },
  projectId: string,
  given: KnowledgeConfig,
  stored: KnowledgeConfig | null | undefined,
): Promise<void> {
  if (given.share_between_actors && !stored?.share_between_actors) refuseEndUserBound(checking.caller)
  return checkKnowledge(checking, projectId, given, given, stored ?? null)
}

/**
 * Validates the knowledge overlay of a session or of a turn, for a turn with the overlay of its session.
 * @throws RESOURCE_NOT_FOUND; VALIDATION_FAILED for facts of all end users by an agent that does not share them;
 *   FORBIDDEN, also for an agent of another project: a call cannot widen the sources of a shared agent
 */
export async function checkOverlay(
  checking: Checking,
  agent: { project_id: string; knowledge_config: KnowledgeConfig | null },
  projectId: string,
  overlay: SessionKnowledge,
  session?: SessionKnowledge | null,
): Promise<void> {
  if (agent.project_id !== projectId)
    raise('FORBIDDEN', { message: 'Knowledge of an agent of another project cannot be overridden' })
  const config = agent.knowledge_config
  if (overlay.write_memory_scope === 'store' && !config?.share_between_actors)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'knowledge_config.write_memory_scope', message: UNSHARED })
  const before = session ? mergedKnowledge(config ?? {}, session) : config
  await checkKnowledge(checking, projectId, overlay, mergedKnowledge(before ?? {}, overlay), before)
}
