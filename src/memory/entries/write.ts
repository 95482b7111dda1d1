import { StatementTimeoutError } from 'slonik'
import { currentSpace, type Space } from '../../content/embeddings/space.ts'
import { cosineSimilarity, nearestRows } from '../../content/vectors/scan.ts'
import { decodeVector, VECTOR_SOURCES, vectorsOfRefs } from '../../content/vectors/store.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { storableText } from '../../core/api/storable-text.ts'
import { RerunAfter } from '../../core/db/pool.ts'
import { isForeignKeyViolation, type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { embedContent } from '../memories/embed.ts'
import { contentHash } from '../memories/hash.ts'
import { MAX_CONTENT, type MemoryRow, memoryKind, requireCurrent } from '../memories/model.ts'
import { type Candidate, type EmbeddedMemory, insertMemory, type NewMemory, readCandidates } from '../memories/store.ts'
import { ownerKeyOf } from '../reach.ts'
import { ACTOR_MEMORY_LIMIT, type MemoryStoreRow, memoryStoreKind } from '../stores/model.ts'
import { effectiveThresholds } from '../stores/thresholds.ts'
import { type Mechanism, type MemoryEntryRow, memoryEntryKind } from './model.ts'
import {
  entryInsert,
  insertEntry,
  lockForWrite,
  type NewMemoryEntry,
  readStoreState,
  type StoreState,
} from './store.ts'

/** A fact that somebody states. */
export type SubmittedFact = {
  memory_store_id: string
  content: string
  tags?: Record<string, string>
  metadata?: Record<string, unknown> | null
  source_type: 'manual' | 'conversation'
  source_id?: string | null
  /** The end user whose fact it is; null for nobody in particular. */
  actor_id?: string | null
  /** The memory that it replaces, however near it is. */
  supersedes?: string | null
  /** In place of those of the store. */
  duplicate_threshold?: number | null
  supersede_threshold?: number | null
  expires_at?: string | null
  mechanism: Mechanism
  memory_rule_id?: string | null
  generation_id?: string | null
  conversation_id?: string | null
  /** What an attempt of a node makes its side effect under: nothing is stated under it twice. */
  attempt_key?: string | null
  principal: { type: string; id: string }
}

/** The memory that says a fact already or is replaced by it. */
export type MatchedMemory = {
  memory: MemoryRow
  replaced: boolean
  /** The claim named it, or found it by thresholds of its own: those of the store would have done something else. */
  chosen: boolean
}

export type Written = { entry: MemoryEntryRow; memory: MemoryRow | null }

/** Candidates of the search that are looked at under the lock; only the nearest that still holds decides. */
const LOOKED_AT = 16
/** Runs of a dry run; a write is run again as often as it takes. */
const MOST_ROUNDS = 5

/**
 * Writes one fact: it is new, replaces the memory that it is near to, or says what the store knows already of the same end
 * user, or of nobody. The text is embedded and its likes are searched before the transaction; the part of the store that is
 * the end user's is then locked, and what was written since the search began is looked at too. So of equal facts that come
 * at once one is new and the others are not.
 *
 * No model takes part and no texts are merged. A fact that cannot be embedded is new unless its text is there.
 * @param options.dryRun says what would happen; the entry is not stored, and the memory of a new fact is null
 * @param options.check is given the store once it is known, before anything is embedded; what it raises ends the write
 * @param options.found is given the memory that decides, before anything is written; what it raises ends the write
 * @param options.within runs in the transaction, after the rows are written
 * @param options.admitted the write is part of work that was let in before: quotas are not asked again
 * @throws RESOURCE_NOT_FOUND for a store that is gone or a memory to replace that never was; ACTOR_NOT_FOUND for an end user
 *   who is gone; VALIDATION_FAILED, QUOTA_EXCEEDED
 */
export async function writeFact(
  services: Services,
  fact: SubmittedFact,
  options: {
    dryRun?: boolean
    check?: (store: MemoryStoreRow) => Promise<void>
    found?: (found: MatchedMemory) => void
    within?: (tx: Tx, written: Written) => Promise<void>
    admitted?: boolean
  } = {},
): Promise<Written> {
  const claim = claimOf(fact)
  const { admitted } = options
  const look = ({ action, match, similarity }: Decision, store: MemoryStoreRow): void => {
    if (!match) return
    const chosen = claim.supersedes != null || actionFor(similarity, effectiveThresholds(store)) !== action
    options.found?.({ memory: match, replaced: action === 'superseded', chosen })
  }
  let prepared = await prepare(services, claim, { admitted, check: options.check })
  if (options.dryRun) {
    for (let round = 1; ; round++) {
      const decision = await decide(services.pool, prepared.store, claim, prepared)
      if (decision !== 'look again' || round === MOST_ROUNDS) {
        const reached = decision === 'look again' ? created(null) : decision
        look(reached, prepared.store)
        return imagined(prepared.store, claim, reached)
      }
      prepared = await prepare(services, claim, { admitted, again: true })
    }
  }
  const writing = services.write(async tx => {
    const { store: seen } = prepared
    const store = await lockForWrite(tx, { id: seen.id, project_id: seen.project_id, actor_id: claim.actor_id })
    const decision = await decide(tx, store, claim, prepared)
    if (decision === 'look again')
      throw new RerunAfter(async () => {
        prepared = await prepare(services, claim, { admitted, again: true })
      })
    look(decision, store)
    const written = await write(services, tx, { store, claim, decision, prepared })
    await options.within?.(tx, written)
    return written
  })
  return writing.catch(error => {
    // What is read beside the locks is older than they are: the store was deleted while they were waited for.
    if (isForeignKeyViolation(error, 'memory_store_id'))
      raise('RESOURCE_NOT_FOUND', { meta: { id: claim.memory_store_id }, cause: error })
    throw error
  })
}

type Claim = SubmittedFact & {
  hash: string
  actor_id: string | null
  tags: Record<string, string>
  metadata: Record<string, unknown> | null
}

/** Raises VALIDATION_FAILED, RESOURCE_NOT_FOUND. */
function claimOf(fact: SubmittedFact): Claim {
  const content = storableText(fact.content).trim()
  const problem =
    content === ''
      ? 'must not be empty'
      : content.length > MAX_CONTENT
        ? `must have at most ${MAX_CONTENT} characters`
        : null
  if (problem) raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: problem })
  if (!isIdOf(memoryStoreKind, fact.memory_store_id))
    raise('RESOURCE_NOT_FOUND', { meta: { id: fact.memory_store_id } })
  return {
    ...fact,
    content,
    hash: contentHash(content),
    actor_id: fact.actor_id ?? null,
    tags: fact.tags ?? {},
    metadata: fact.metadata ?? null,
  }
}

/** What was found out about a claim before its store is locked. */
type Prepared = {
  store: StoreState
  /** Null: not embedded, because the store had the text. */
  embedded: EmbeddedMemory | null
  /** Those of the store that are nearest to the text. */
  near: string[]
  /** There are more that may be near. */
  more: boolean
}

/**
 * Embeds a claim and searches what is near to it.
 * @param options.again the text that the store had, or all that was near, is gone
 */
async function prepare(
  services: Services,
  claim: Claim,
  {
    again = false,
    admitted,
    check,
  }: { again?: boolean; admitted?: boolean; check?: (store: MemoryStoreRow) => Promise<void> },
): Promise<Prepared> {
  const store =
    (await readStoreState(services.pool, claim)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: claim.memory_store_id } })
  await check?.(store)
  const { supersede } = effectiveThresholds(claim, store)
  if (store.twin && !again && !claim.supersedes && !isDeclared(claim))
    return { store, embedded: null, near: [], more: false }
  const embedded =
    (store.twin === null ? null : await vectorsOfTwin(services, store.twin)) ??
    (await embedContent(services, { project_id: store.project_id, ref: store.id, content: claim.content, admitted }))
  const { space, vectors } = embedded
  if (claim.supersedes || isDeclared(claim) || !space || vectors.length === 0)
    return { store, embedded, near: [], more: false }
  const near = await nearest(services, store, space, {
    actor_id: claim.actor_id,
    vector: vectors[0],
    relevant: supersede,
  })
  return { store, embedded, near: near.slice(0, LOOKED_AT), more: near.length > LOOKED_AT }
}

/** The vectors of a memory with the same text; null when it has none. */
async function vectorsOfTwin(services: Services, id: string): Promise<EmbeddedMemory | null> {
  const space = await currentSpace(services)
  if (!space) return null
  const found = await vectorsOfRefs(services.pool, { source: VECTOR_SOURCES.memory, ref_ids: [id], space_id: space.id })
  return found.length === 1 ? { vectors: [decodeVector(found[0].vec)], failed: false, space } : null
}

/**
 * Memories of an end user in a store, or of nobody, by how near they are to a vector. Where those of nobody are most of what
 * the project has, they are searched in the codes that the process keeps of all of it; of others the database finds the rows.
 */
async function nearest(
  services: Services,
  store: StoreState,
  space: Space,
  { actor_id, ...question }: { actor_id: string | null; vector: Float32Array; relevant: number },
): Promise<string[]> {
  try {
    const found = await nearestRows(services, {
      projects: [store.project_id],
      space,
      source: VECTOR_SOURCES.memory,
      filter: ({ container, owner }) => sql.fragment`${container} = ${store.id} and ${owner} = ${ownerKeyOf(actor_id)}`,
      whole:
        actor_id === null &&
        store.project_count !== null &&
        2 * (store.valid_count - store.marked_count) >= store.project_count,
      ...question,
      limit: 1,
    })
    return found.map(({ ref_id }) => ref_id)
  } catch (error) {
    if (!(error instanceof StatementTimeoutError)) throw error
    services.log.warn({ memory_store_id: store.id }, 'memory written without a search for its likes: it took too long')
    return []
  }
}

type Decision = {
  action: Exclude<MemoryEntryRow['action'], 'updated'>
  similarity: number | null
  /** The memory that says it already, or the one to be replaced. */
  match: Candidate | null
}

const created = (similarity: number | null): Decision => ({ action: 'created', similarity, match: null })

/** A template says what there is: its facts are not compared with others, and inherit nothing from what they replace. */
const isDeclared = ({ mechanism }: Pick<Claim, 'mechanism'>): boolean => mechanism === 'formation'

/** What becomes of a claim, by what the store holds now. Raises VALIDATION_FAILED, RESOURCE_NOT_FOUND. */
async function decide(
  db: Queryable,
  store: MemoryStoreRow,
  claim: Claim,
  { store: { snapshot }, embedded, near, more }: Prepared,
): Promise<Decision | 'look again'> {
  const thresholds = effectiveThresholds(claim, store)
  const { actor_id, hash, supersedes = null } = claim
  if (isDeclared(claim) && !supersedes) return created(null)
  const rivals = await readCandidates(db, {
    store,
    actor_id,
    hash,
    supersedes,
    near,
    snapshot,
    space: embedded?.space ?? null,
  })
  const likeness = (rival: Candidate): number | null => similarityOf(embedded?.vectors ?? [], rival.vectors ?? [])
  if (supersedes) {
    const target =
      rivals.find(({ id }) => id === supersedes) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: supersedes } })
    if (target.memory_store_id !== store.id)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'supersedes', message: 'must name a memory of the store' })
    if (target.actor_id !== actor_id)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'supersedes', message: 'must name a memory of the same actor_id' })
    requireCurrent(target, 'supersedes')
    return { action: 'superseded', similarity: target.hash === hash ? 1 : likeness(target), match: target }
  }
  const twin = rivals.find(rival => rival.hash === hash)
  if (twin) return { action: 'skipped', similarity: 1, match: twin }
  if (!embedded) return 'look again'
  const [top] = rivals
    .map(rival => ({ rival, similarity: likeness(rival) ?? -2 }))
    .sort((left, right) => right.similarity - left.similarity)
  if (!top) return more ? 'look again' : created(null)
  if (top.similarity < -1) return created(null)
  const { rival: match, similarity } = top
  const action = actionFor(similarity, thresholds)
  return action === 'created' ? created(similarity) : { action, similarity, match }
}

/** What becomes of a claim by how near the nearest memory is. */
function actionFor(
  similarity: number | null,
  { duplicate, supersede }: ReturnType<typeof effectiveThresholds>,
): Decision['action'] {
  if (similarity === null) return 'created'
  if (similarity >= duplicate) return 'skipped'
  return similarity >= supersede ? 'superseded' : 'created'
}

/**
 * How alike two texts are: the mean of the cosines of their windows, one by one; a window that the other text does not have
 * is unlike. Null where one has no vectors.
 */
function similarityOf(text: readonly Float32Array[], other: readonly string[]): number | null {
  if (text.length === 0 || other.length === 0) return null
  const sum = text
    .slice(0, other.length)
    .reduce((total, vector, at) => total + cosineSimilarity(decodeVector(other[at]), vector), 0)
  return Math.min(1, sum / Math.max(text.length, other.length))
}

async function write(
  services: Services,
  tx: Tx,
  { store, claim, decision, prepared }: { store: MemoryStoreRow; claim: Claim; decision: Decision; prepared: Prepared },
): Promise<Written> {
  const { action, match } = decision
  if (action === 'skipped')
    return { entry: await insertEntry(tx, entryOf(store, claim, decision, match?.id ?? null)), memory: match }
  const made = memoryOf(store, claim, match)
  const entry = entryOf(store, claim, decision, made.id)
  const { memory, tooMany } = await insertMemory(tx, made, prepared.embedded as EmbeddedMemory, {
    textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
    retires: match?.id ?? null,
    most: store.actor_memory_limit ?? ACTOR_MEMORY_LIMIT,
    entry: entryInsert(entry),
  })
  tx.emit(memoryKind, 'created', memory)
  if (match) {
    const now = memory.created_at
    const retired = {
      ...match,
      embedded: false,
      invalidated_at: now,
      superseded_by_memory_id: memory.id,
      updated_at: now,
    }
    tx.emit(memoryKind, 'superseded', retired, { extra: { superseded_by: memory.id } })
  }
  for (const row of tooMany) tx.emit(memoryKind, 'retracted', row)
  // Of the same statement, so of the same time.
  return { entry: { ...entry, created_at: memory.created_at, store_tags: store.tags }, memory }
}

/** The memory that a claim makes; it inherits what the one that it replaces was tagged with. */
function memoryOf(store: MemoryStoreRow, claim: Claim, replaced: MemoryRow | null): NewMemory {
  const inherits = isDeclared(claim) ? null : replaced
  return {
    id: newId(memoryKind.prefix),
    project_id: store.project_id,
    memory_store_id: store.id,
    content: claim.content,
    hash: claim.hash,
    source_type: claim.source_type,
    source_id: claim.source_id ?? null,
    actor_id: claim.actor_id,
    tags: inherits ? inheritedTags(inherits.tags, claim.tags) : claim.tags,
    metadata: inherits?.metadata ? inheritedMetadata(inherits.metadata, claim.metadata) : claim.metadata,
    expires_at: claim.expires_at ?? null,
  }
}

const MOST_TAGS = 50

/** The tags of both, the incoming ones first; of the old ones as many as there is room for. */
const inheritedTags = (old: Record<string, string>, incoming: Record<string, string>): Record<string, string> => {
  const left = Object.entries(old).filter(([key]) => !Object.hasOwn(incoming, key))
  return { ...Object.fromEntries(left.slice(0, Math.max(0, MOST_TAGS - Object.keys(incoming).length))), ...incoming }
}

/** The metadata of both, the incoming keys first; where that is more than a memory may have, only what comes in. */
const inheritedMetadata = (old: Record<string, unknown>, incoming: Record<string, unknown> | null) => {
  const both = { ...old, ...incoming }
  return MetadataBag.safeParse(both).success ? both : incoming
}

const entryOf = (
  store: MemoryStoreRow,
  claim: Claim,
  { action, similarity, match }: Decision,
  memory_id: string | null,
): NewMemoryEntry => ({
  id: newId(memoryEntryKind.prefix),
  project_id: store.project_id,
  memory_store_id: store.id,
  content: claim.content,
  action,
  memory_id,
  superseded_memory_id: action === 'superseded' ? (match?.id ?? null) : null,
  similarity,
  declared: claim.supersedes != null,
  mechanism: claim.mechanism,
  memory_rule_id: claim.memory_rule_id ?? null,
  generation_id: claim.generation_id ?? null,
  conversation_id: claim.conversation_id ?? null,
  source_id: claim.source_id ?? null,
  actor_id: claim.actor_id,
  attempt_key: claim.attempt_key ?? null,
  principal_type: claim.principal.type,
  principal_id: claim.principal.id,
  tags: claim.tags,
  metadata: claim.metadata,
})

/** The entry that a write would make. */
const imagined = (store: StoreState, claim: Claim, decision: Decision): Written => {
  const memory = decision.action === 'skipped' ? decision.match : null
  const entry = entryOf(store, claim, decision, memory?.id ?? null)
  return { entry: { ...entry, created_at: new Date().toISOString(), store_tags: store.tags }, memory }
}
