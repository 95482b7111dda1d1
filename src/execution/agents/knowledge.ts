import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { documentKind } from '../../content/documents/model.ts'
import { SEARCH_ACTION as SEARCH } from '../../content/knowledge/sources.ts'
import { Directory } from '../../content/paths.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { refuseForOne } from '../../memory/reach.ts'

/** What an agent knows: what is searched before its turns, and where its turns may write. */

const ids = (max: number) => z.array(z.string().min(1).max(255)).max(max)

const NAMES_SAID =
  '`{actor_id}`, `{actor_external_id}` and `{session_id}` stand for those of the turn; where it has none, nothing matches'

const UNSHARED = 'takes an agent with share_between_actors'

const reading = {
  memory_store_ids: ids(50).optional().describe('Memory stores that are read'),
  document_ids: ids(500).optional().describe('Documents that are read'),
  document_paths: z
    .array(Directory)
    .max(50)
    .optional()
    .describe(`Directories, or exact paths, that are read. ${NAMES_SAID}`),
  tags: z
    .record(z.string().min(1).max(128), z.string().max(256))
    .optional()
    .describe(
      `Every pair must match: on a memory or its store, on a document. Reads memories and documents alike. ${NAMES_SAID}`,
    ),
  min_score: z
    .number()
    .min(0)
    .max(1)
    .optional()
    .describe('Least cosine of what its meaning alone has found; default 0.5'),
  rrf_k: z.number().gt(0).max(1000).optional().describe('Constant of the rank fusion; default KNOWLEDGE_RRF_K'),
  recency_half_life_days: z
    .number()
    .min(0)
    .max(36_500)
    .optional()
    .describe('After so many days a memory counts half; 0 is off; default KNOWLEDGE_RECENCY_HALF_LIFE_DAYS'),
  limit: z.int().min(1).max(50).optional().describe('Most results that a turn is given; default 5'),
}

const write_memory_scope = z
  .enum(['actor', 'store'])
  .optional()
  .describe(
    'Which end user facts of turns belong to: `actor`, the default, that of the turn; `store` none, which requires an agent with share_between_actors',
  )

const write_memory_store_id = z
  .string()
  .min(1)
  .max(255)
  .nullable()
  .optional()
  .describe('Memory store that turns may write to, by the tool `write_memory`')

/** A configuration in the place of what an agent has, for one turn. */
export const KnowledgeOverlay = z.strictObject({ ...reading, write_memory_scope }).meta({ id: 'KnowledgeOverlay' })
export type KnowledgeOverlay = z.output<typeof KnowledgeOverlay>

/** The same for all turns of a session. */
export const SessionKnowledge = z
  .strictObject({ ...reading, write_memory_scope, write_memory_store_id })
  .meta({ id: 'SessionKnowledgeConfig' })
export type SessionKnowledge = z.output<typeof SessionKnowledge>

export const KnowledgeConfig = z
  .strictObject({
    ...reading,
    write_memory_scope,
    write_memory_store_id,
    share_between_actors: z
      .boolean()
      .optional()
      .describe('Turns read the facts of every end user, not only those of their own; default false'),
  })
  .superRefine((config, context) => {
    if (config.write_memory_scope === 'store' && !config.share_between_actors)
      context.addIssue({ code: 'custom', path: ['write_memory_scope'], message: UNSHARED })
  })
  .meta({ id: 'KnowledgeConfig' })
export type KnowledgeConfig = z.output<typeof KnowledgeConfig>

/** What a turn reads and writes: lists of both, tags of both, for the rest what the later one says. */
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

/** Whom a turn is for, as configurations name it. */
export type NamedStore = { actor_id: string | null; actor_external_id: string | null; session_id: string | null }

const NAME = /\{(actor_id|actor_external_id|session_id)\}/g

export const namesExternalId = ({ tags, document_paths }: SessionKnowledge): boolean =>
  [...Object.values(tags ?? {}), ...(document_paths ?? [])].some(text => text.includes('{actor_external_id}'))

/** A text with its names filled in; null where the turn has none of that name. */
function filled(text: string, named: NamedStore): string | null {
  const names = [...text.matchAll(NAME)].map(([, name]) => named[name as keyof NamedStore])
  return names.includes(null) ? null : text.replace(NAME, (_, name: keyof NamedStore) => named[name] as string)
}

/** The same of a path. A name that is more than a part of one would lead elsewhere. */
const filledPath = (path: string, named: NamedStore): string | null =>
  [...path.matchAll(NAME)].some(([, name]) => /[/*?]/.test(named[name as keyof NamedStore] ?? ''))
    ? null
    : filled(path, named)

/**
 * What a configuration searches in a turn: its names filled in, and which sources. A filter that names what the turn does not
 * have matches nothing; null where nothing is left to search.
 */
export function searchedBy(
  config: SessionKnowledge,
  named: NamedStore,
): { config: SessionKnowledge; memories: boolean; documents: boolean } | null {
  const pairs = Object.entries(config.tags ?? {})
  const tags = pairs.flatMap(([key, value]): [string, string][] => {
    const known = filled(value, named)
    return known === null ? [] : [[key, known]]
  })
  if (tags.length < pairs.length) return null
  const document_paths = config.document_paths?.map(path => filledPath(path, named)).filter(path => path !== null)
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

/** Which sources a configuration has searched. Memories are never read unscoped: stores may be of single end users. */
function sourcesOf(config: SessionKnowledge): { memories: boolean; documents: boolean } {
  const { memory_store_ids, document_ids, document_paths } = config
  const tagged = isTagged(config)
  const memories = !!memory_store_ids?.length || tagged
  const documents = !!document_ids?.length || !!document_paths?.length || tagged
  return { memories, documents: documents || !memories }
}

/** Whether no list narrows the documents that are read; tags may. */
const readsAllDocuments = (config: SessionKnowledge): boolean =>
  sourcesOf(config).documents && !config.document_ids?.length && !config.document_paths?.length

type Checking = { tx: Queryable; allow: Context['allow'] }

const storeKind = (): Kind<any> => kinds.get('memory_store')

/** Rows of a project that a configuration names. Raises RESOURCE_NOT_FOUND for those that are `given` and not there. */
async function named(
  db: Queryable,
  kind: Kind<any>,
  projectId: string,
  { given = [], known = [] }: { given?: readonly string[]; known?: readonly string[] },
): Promise<KindRow[]> {
  const wanted = [...new Set([...given, ...known])].filter(id => isIdOf(kind, id))
  const rows: readonly KindRow[] =
    wanted.length === 0
      ? []
      : await db.any(kind.sql`
          select ${kind.columns} from ${sql.identifier([kind.table])} t
          where t.id = any(${sql.array(wanted, 'text')}) and t.project_id = ${projectId}`)
  const missing = given.filter(id => !rows.some(row => row.id === id))
  if (missing.length > 0) raise('RESOURCE_NOT_FOUND', { meta: { id: missing[0], missing } })
  return [...rows]
}

/** Whether less narrows what is read from the same places: a tag that was asked for, or whose facts they are. */
const isLoosened = (next: KnowledgeConfig, before: KnowledgeConfig): boolean =>
  Object.entries(before.tags ?? {}).some(([key, value]) => next.tags?.[key] !== value) ||
  (!!next.share_between_actors && !before.share_between_actors)

/**
 * Validates what is given as a configuration. Who may write it may not thereby read what it may not search itself: what
 * it reads beyond what was read before is asked for: what it names anew, all of it where less narrows it than before, and
 * everything where nothing does. Ids are looked up; what they name may go later.
 * @param given what the request says
 * @param next what would be read then
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
  for (const row of await named(tx, store, project_id, stores))
    if (!known?.memory_store_ids?.includes(row.id)) allow(SEARCH, { kind: store, row })
  const documents = { given: given.document_ids, known: all.document_ids }
  for (const row of await named(tx, documentKind, project_id, documents))
    if (!known?.document_ids?.includes(row.id)) allow(SEARCH, { kind: documentKind, row })
  for (const path of [...(given.document_paths ?? []), ...(all.document_paths ?? [])])
    if (!known?.document_paths?.includes(path)) allow(SEARCH, { kind: documentKind, project_id, path })
  const written = given.write_memory_store_id
  if (written != null)
    for (const row of await named(tx, store, project_id, { given: [written] }))
      if (written !== before?.write_memory_store_id) allow('memories:CreateMemoryEntry', { kind: store, row })

  const retagged = loosened || !isDeepStrictEqual(next.tags ?? {}, before?.tags ?? {})
  const unlisted = !next.memory_store_ids?.length
  if (isTagged(next) && unlisted && (retagged || before?.memory_store_ids?.length))
    allow(SEARCH, { kind: store, project_id })
  if (readsAllDocuments(next) && (retagged || before === null || !readsAllDocuments(before)))
    allow(SEARCH, { kind: documentKind, project_id })
}

/**
 * Validates the configuration that an agent is to have.
 * @throws RESOURCE_NOT_FOUND; FORBIDDEN, also for work for one end user that would have the agent read the facts of all
 */
export function checkConfigured(
  checking: Checking & { caller: Pick<Caller, 'bounds'> },
  projectId: string,
  given: KnowledgeConfig,
  stored: KnowledgeConfig | null | undefined,
): Promise<void> {
  if (given.share_between_actors && !stored?.share_between_actors) refuseForOne(checking.caller)
  return checkKnowledge(checking, projectId, given, given, stored ?? null)
}

/**
 * Validates what a turn, or the turns of a session, are to know beside what the agent does, and for a turn its session.
 * @throws RESOURCE_NOT_FOUND; VALIDATION_FAILED for facts of everybody by an agent that does not share them; FORBIDDEN, also for
 *   an agent of another project: a call does not widen what that shares
 */
export async function checkOverlay(
  checking: Checking,
  agent: { project_id: string; knowledge_config: KnowledgeConfig | null },
  projectId: string,
  overlay: SessionKnowledge,
  session?: SessionKnowledge | null,
): Promise<void> {
  if (agent.project_id !== projectId)
    raise('FORBIDDEN', { message: 'What an agent of another project knows is not changed by a call' })
  const config = agent.knowledge_config
  if (overlay.write_memory_scope === 'store' && !config?.share_between_actors)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'knowledge_config.write_memory_scope', message: UNSHARED })
  const before = session ? mergedKnowledge(config ?? {}, session) : config
  await checkKnowledge(checking, projectId, overlay, mergedKnowledge(before ?? {}, overlay), before)
}
